"""The generated messages follow the protos of the repository, and can be imported beside others."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from conformance import PACKAGE


def descriptors(folder: Path) -> dict[str, list[str]]:
    """The serialized protos of each module, which are the same for every version of protoc."""
    modules = sorted((folder / "tollkeeper/_generated").glob("*_pb2.py"))
    return {module.name: re.findall(r"AddSerializedFile\((.*)\)", module.read_text()) for module in modules}


class Generated(unittest.TestCase):
    def test_the_messages_are_up_to_date(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([PACKAGE / "generate", folder], check=True, env=os.environ | {"PYTHON": sys.executable})
            self.assertEqual(descriptors(PACKAGE / "src"), descriptors(Path(folder)))

    def test_other_messages_of_the_same_names_can_be_imported_beside_them(self) -> None:
        program = (
            "from google.protobuf import descriptor_pb2, descriptor_pool\n"
            "for name in ('google/rpc/status', 'envoy/extensions/common/ratelimit/v3/ratelimit'):\n"
            "    package = name.rsplit('/', 1)[0].replace('/', '.')\n"
            "    other = descriptor_pb2.FileDescriptorProto(name=name + '.proto', package=package)\n"
            "    other.message_type.add(name='Status')\n"
            "    other.message_type.add(name='RateLimitDescriptor')\n"
            "    descriptor_pool.Default().AddSerializedFile(other.SerializeToString())\n"
            "import tollkeeper\n"
        )
        subprocess.run(
            [sys.executable, "-c", program], check=True, env=os.environ | {"PYTHONPATH": str(PACKAGE / "src")}
        )
