// Writes src/generated/descriptor.ts from the .proto files of the repository: npm run generate
import { writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import protobuf from "protobufjs";

const path = (relative) => fileURLToPath(new URL(relative, import.meta.url));

/** The messages and the service of tollkeeper/v1/tollkeeper.proto and of its imports, as a TypeScript module. */
export function generate() {
  const root = new protobuf.Root();
  root.resolvePath = (_origin, target) => path(`../../../proto/${target}`);
  root.loadSync("tollkeeper/v1/tollkeeper.proto");
  const { nested } = root.toJSON();
  const json = JSON.stringify({ nested }, null, 1);
  return `// Written by scripts/generate.mjs. Do not edit.\nexport const descriptor: unknown = ${json};\n`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  writeFileSync(path("../src/generated/descriptor.ts"), generate());
}
