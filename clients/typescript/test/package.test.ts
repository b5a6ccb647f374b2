// What the registry would get.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const root = new URL("../../", import.meta.url);

test("the package has its exports with their types, its license, and no tests", () => {
  const command = ["pack", "--dry-run", "--json", "--ignore-scripts"];
  const [listing] = JSON.parse(execFileSync("npm", command, { cwd: root, encoding: "utf8" }));
  const paths: string[] = listing.files.map(({ path }: { path: string }) => path);
  const manifest = JSON.parse(readFileSync(new URL("package.json", root), "utf8"));
  for (const path of Object.values<string>(manifest.exports)) {
    for (const file of [path, path.replace(/js$/, "d.ts")]) assert(paths.includes(file.slice("./".length)), file);
  }
  const others = paths.filter((path) => !/^(dist|src)\//.test(path) || path.includes("test."));
  assert.deepEqual(others, ["LICENSE", "README.md", "package.json"]);
});
