// The samples of README.md, which are the files of examples/: run as they are, but for addresses and names.
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { after, test } from "node:test";
import { connect, freePort, random, serviceTest, variable } from "./services.js";

const root = new URL("../../", import.meta.url);

test("README.md shows examples as they are, or links them", () => {
  const readme = readFileSync(new URL("README.md", root), "utf8");
  const shown = [...readme.matchAll(/```ts\n(.*?)```/gs)].map(([, sample]) => sample);
  const examples = readdirSync(new URL("examples", root)).map((file) => [
    file,
    readFileSync(new URL(`examples/${file}`, root), "utf8"),
  ]);
  for (const [file, text] of examples) {
    assert(shown.includes(text) || readme.includes(`(examples/${file})`), `${file} is in README.md or linked there`);
  }
  const texts = examples.map(([, text]) => text);
  for (const sample of shown) assert(texts.includes(sample), `${sample} is a file of examples/`);
});

/** Writes an example with other texts in the place of some of its own. */
function write(name: string, replaced: [from: string, to: string][]): URL {
  const compiled = readFileSync(new URL(`build/examples/${name}.js`, root), "utf8");
  const text = replaced.reduce((text, [from, to]) => {
    assert(text.includes(from), `${name} has ${from}`);
    return text.replaceAll(from, to);
  }, compiled);
  const folder = new URL("build/run/", root);
  mkdirSync(folder, { recursive: true });
  const file = new URL(`${name}.js`, folder);
  writeFileSync(file, text);
  return file;
}

/** Starts an example that is written so. */
function start(name: string, replaced: [from: string, to: string][]): ChildProcess {
  const file = write(name, replaced);
  const child = spawn(process.execPath, [file.pathname], { stdio: ["ignore", "pipe", "inherit"] });
  after(() => child.kill());
  return child;
}

async function output(child: ChildProcess): Promise<string> {
  let text = "";
  for await (const chunk of child.stdout ?? []) text += chunk;
  return text;
}

/** Waits until the server of the example listens. */
async function get(url: string): Promise<[status: number, remaining: string | null, body: string]> {
  for (let attempt = 0; ; attempt++) {
    try {
      const response = await fetch(url, { headers: { authorization: "Bearer key-of-alice" } });
      return [response.status, response.headers.get("RateLimit-Remaining"), await response.text()];
    } catch (error) {
      if (attempt === 2_400) throw error;
      await new Promise((passed) => setTimeout(passed, 50));
    }
  }
}

/** A text of each sample, and what the conformance rules limit in its place. */
const servers: [name: string, described: string, three: string][] = [
  ["decide", "{ user }", "{ three: user }"],
  ["express", "{ user: request", "{ three: request"],
  ["fastify", "{ user: request", "{ three: request"],
  ["hono", "{ user: context", "{ three: context"],
];
for (const [name, described, three] of servers) {
  serviceTest(`the sample ${name} answers 401 to strangers, and 429 to the fourth request`, async () => {
    const port = String(await freePort());
    start(name, [
      ["localhost:8081", variable("TOLLKEEPER_ADDR")],
      ['"example"', '"conformance", { timeoutMs: 10000, onFailure: "deny" }'],
      [described, three],
      ['"alice"', `"${random()}"`],
      ["3000", port],
    ]);
    const url = `http://127.0.0.1:${port}`;
    const answers = [];
    for (let call = 0; call < 4; call++) answers.push(await get(url));
    assert.deepEqual(
      answers.map(([status]) => status),
      [200, 200, 200, 429],
    );
    assert.deepEqual(
      answers.map(([, , body]) => body === "Hello\n"),
      [true, true, true, false],
    );
    assert.equal(answers[3]?.[1], "0");
    assert.equal((await fetch(url, { headers: { authorization: "alice" } })).status, 401);
  });
}

serviceTest("the sample for edge runtimes answers 401 to strangers, and 429 to the fourth request", async () => {
  const user = random();
  const file = write("edge", [
    ["http://localhost:8080", `http://${variable("TOLLKEEPER_HTTP_ADDR")}`],
    ['"example"', '"conformance", { timeoutMs: 10000, onFailure: "deny" }'],
    ["{ user }", "{ three: user }"],
    ['"alice"', `"${user}"`],
  ]);
  const worker: { fetch(request: Request): Promise<Response> } = (await import(file.href)).default;
  const answers = [];
  for (const authorization of ["alice", ...Array(4).fill("Bearer key-of-alice")]) {
    answers.push(await worker.fetch(new Request("http://edge.example", { headers: { authorization } })));
  }
  assert.deepEqual(
    answers.map(({ status }) => status),
    [401, 200, 200, 200, 429],
  );
  assert.equal(answers[4]?.headers.get("RateLimit-Remaining"), "0");
});

test("the sample of a unit test passes", async () => {
  const child = start("unit", []);
  assert.match(await output(child), /pass 1/);
});

serviceTest("the sample of a hold commits what was used", async () => {
  const user = random();
  const child = start("hold", [
    ["localhost:8081", variable("TOLLKEEPER_ADDR")],
    ['"llm", {', '"conformance", { timeoutMs: 10000,'],
    ['"alice"', `"${user}"`],
  ]);
  assert.equal(await output(child), "an answer to: Why is the sky blue?\n");
  const { statuses } = await connect(variable("TOLLKEEPER_ADDR")).read({ user });
  assert.equal(statuses[0]?.used, 42);
});

serviceTest("the sample of TLS gets a decision", async () => {
  const child = start("tls", [
    ["tollkeeper.example:8081", variable("TOLLKEEPER_TLS_ADDR")],
    ['"example"', '"conformance"'],
    ["tls: {", 'timeoutMs: 10000, tls: { serverName: "localhost",'],
    ["ca.pem", variable("TOLLKEEPER_CA")],
    ["client.pem", variable("TOLLKEEPER_CERT")],
    ["client.key", variable("TOLLKEEPER_KEY")],
    ['"alice"', `"${random()}"`],
  ]);
  assert.match(await output(child), /allowed: true,\s+failed: false,\s+limit: 1000,\s+remaining: 999/);
});
