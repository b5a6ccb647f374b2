"""Prints the ten slowest tests of a run, and of each failed test its cause and the command that repeats it alone. The argument is
the file to which tests/support/timed has added what the test binaries print."""

import re
import sys

LINES_MAX = 30  # of a cause; the whole of it is above

times, failed, ended, causes = [], [], [], {}
command = cause = running = None
for line in open(sys.argv[1], errors="replace"):
    line = line.rstrip("\n")
    if binary := re.fullmatch(r"binary (\S+) (\S+)", line):
        ended += [running] if running else []
        package, name = binary.groups()
        # A binary without the name of a test is that of the package's own tests.
        target = "--lib --bins" if name == package.replace("-", "_") else f"--test {name}"
        running, causes = f"cargo test --package {package} {target}", {}
        command = f"{running} -- --include-ignored --exact"
    elif test := re.fullmatch(r"test (\S+)(?: - .*)? \.\.\. (ok|FAILED) <(.*)s>", line):
        times.append((float(test[3]), test[1]))
        if test[2] == "FAILED":
            failed.append((f"{command} {test[1]}", cause := []))
            causes[test[1]], cause = cause, None
    elif section := re.fullmatch(r"---- (\S+)(?: - .*)? stdout ----", line):
        cause = causes.get(section[1])
    elif line == "failures:" or line.startswith(("stack backtrace:", "note: run with `RUST_BACKTRACE")):
        cause = None
    elif line.startswith("test result:"):
        running = None
    elif cause is not None and line:
        cause.append(line)

print("tests/run: the slowest tests")
for seconds, name in sorted(times, reverse=True)[:10]:
    print(f"{seconds:.3f} s {name}")
for binary in ended + ([running] if running else []):
    print(f"\ntests/run: ended by one of its tests: {binary}")
for repeat, cause in failed:
    # What a test prints comes before the reason why it panicked.
    start = next((index for index, line in enumerate(cause) if " panicked at " in line), 0)
    shown = cause[start:][:LINES_MAX] + ["…"] * (len(cause) - start > LINES_MAX)
    print(f"\ntests/run: FAILED; alone: {repeat}", *shown, sep="\n  ")
print(f"\ntests/run: {len(failed)} of {len(times)} tests failed")
