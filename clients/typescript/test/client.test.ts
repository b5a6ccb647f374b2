import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { type CallError, Client, type Descriptors } from "tollkeeper";
import { Relay } from "./relay.js";
import { connect, goneAddress, random, serviceTest, variable } from "./services.js";

const gone = await goneAddress();

/** What a client that cannot reach the service gets as descriptors, to decide by itself. */
async function sent(descriptors: Descriptors): Promise<unknown> {
  let seen: unknown;
  const client = connect(gone, {
    onFailure: (_error, list) => {
      seen = list;
      return true;
    },
  });
  await client.decide(descriptors);
  return seen;
}

test("an object is a descriptor, and a list of pairs is one", async () => {
  const object = { path: "/login", user: "alice" };
  const pairs = [
    ["path", "/login"],
    ["user", Buffer.of(0xff)],
  ] as const;
  assert.deepEqual(await sent(object), [object]);
  assert.deepEqual(await sent(pairs), [pairs]);
  assert.deepEqual(await sent([object, pairs]), [object, pairs]);
  assert.deepEqual(await sent([pairs]), [pairs]);
});

const mistakes: [name: string, run: (client: Client) => Promise<unknown>, message: RegExp][] = [
  [
    "a value that is missing",
    (client) => client.decide({ user: undefined as unknown as string }),
    /descriptors\[0\]\.entries\[0\]\.value: must be a string or a Uint8Array, not undefined/,
  ],
  [
    "an object whose keys have another order",
    (client) => client.decide({ a: "b", 7: "c" }),
    /descriptors\[0\]: must be a list of pairs/,
  ],
  [
    "a descriptor that is a text",
    (client) => client.decide("user" as unknown as Descriptors),
    /descriptors\[0\]: must be an object/,
  ],
  [
    "hits that are no number",
    (client) => client.decide({ a: "b" }, Number.NaN),
    /hits: .* 0 to 9007199254740991, not NaN/,
  ],
  [
    "a mode that does not exist",
    (client) => client.decideAll([{ descriptors: { a: "b" }, mode: "give" as "take" }]),
    /calls\[0\]\.mode: must be one of: take, check/,
  ],
  [
    "more calls than fit",
    (client) => client.decideAll(new Array(1_001).fill({ descriptors: { a: "b" } })),
    /calls: 1001 exceeds 1000/,
  ],
  [
    "usage of a kind below 0",
    (client) => client.commit("token", { usedByKind: { input: -1 } }),
    /usedByKind\.input: .*not -1/,
  ],
  [
    "an estimate of a kind below 0",
    (client) => client.hold({ a: "b" }, 1, { input: -1 }),
    /hitsByKind\.input: .*not -1/,
  ],
  [
    "usage of a hold that is not whole",
    async (client) => {
      (await client.hold({ a: "b" })).used = 0.5;
    },
    /used: .*not 0.5/,
  ],
];
for (const [name, run, message] of mistakes) {
  test(`${name} is a mistake that is named`, async () => {
    await assert.rejects(() => run(connect(gone)), message);
  });
}

test("settings that are not valid are named", () => {
  assert.throws(() => new Client("", "shop"), /target: must not be empty/);
  assert.throws(() => new Client(gone, ""), /domain: must not be empty/);
  assert.throws(() => new Client(gone, "shop", { timeoutMs: 0 }), /timeoutMs: must be above 0, not 0/);
  assert.throws(
    () => new Client(gone, "shop", { onFailure: "open" as "allow" }),
    /onFailure: must be one of: allow, deny/,
  );
  assert.throws(() => new Client(gone, "shop", { tls: { cert: Buffer.from("") } }), /tls: cert and key/);
});

test("a commit that gets no answer is sent three times, and does not reject", async () => {
  const outcomes: string[] = [];
  const client = connect(gone, {
    onCall: (method, seconds, outcome) => outcomes.push(`${method} ${seconds >= 0} ${outcome}`),
  });
  const { error } = await client.commit("token", { used: 1 });
  assert.equal(error?.code, "UNAVAILABLE");
  assert.deepEqual(outcomes, new Array(3).fill("commit true UNAVAILABLE"));
});

test("an error of the hook is a warning, and the call has its decision", async () => {
  const warning = new Promise<Error>((resolve) => process.once("warning", resolve));
  const client = connect(gone, {
    onCall: () => {
      throw new Error("a bug in the hook");
    },
  });
  assert.equal((await client.decide({ a: "b" })).allowed, true);
  assert.match((await warning).message, /a bug in the hook/);
});

test("a process ends without closing its client", () => {
  const script = `import { Client } from "tollkeeper";
    console.log((await new Client("${process.env.TOLLKEEPER_ADDR ?? gone}", "shop", { timeoutMs: 10000 }).decide({ a: "b" })).allowed);`;
  const cwd = new URL("../..", import.meta.url);
  const { stdout, status } = spawnSync(process.execPath, ["--input-type=module", "--eval", script], {
    cwd,
    encoding: "utf8",
    timeout: 60_000,
  });
  assert.deepEqual([stdout, status], ["true\n", 0]);
});

test("the embedded messages are the ones of the .proto files", async () => {
  const { generate } = await import(new URL("../../scripts/generate.mjs", import.meta.url).href);
  const written = readFileSync(new URL("../../src/generated/descriptor.ts", import.meta.url), "utf8");
  assert(generate() === written, "npm run generate writes them");
});

serviceTest("calls go to the addresses that answer", async () => {
  const client = connect(`ipv4:${gone},${variable("TOLLKEEPER_ADDR")}`, { onFailure: "deny" });
  const decisions = await Promise.all(Array.from({ length: 20 }, () => client.check({ three: random() })));
  assert.deepEqual(
    decisions.map(({ limit }) => limit),
    new Array(20).fill(3),
  );
});

serviceTest("1,000 calls fit into one request", async () => {
  const client = connect(variable("TOLLKEEPER_ADDR"));
  const user = random();
  const decisions = await client.decideAll(new Array(1_000).fill({ descriptors: { three: user } }));
  assert.equal(decisions.filter(({ allowed }) => allowed).length, 3);
});

serviceTest("the hook gets the reason of a request and of a commit that fail", async () => {
  const outcomes: [string, string, string | undefined][] = [];
  const client = connect(variable("TOLLKEEPER_ADDR"), {
    onCall: (method, _seconds, outcome, error?: CallError) => outcomes.push([method, outcome, error?.code]),
  });
  await client.decide({ three: random() });
  await client.decide([new Array(33).fill(["three", "x"])]);
  const { error } = await client.commit("no token");
  assert.equal(error?.code, "INVALID_ARGUMENT");
  assert.deepEqual(outcomes, [
    ["decide", "ok", undefined],
    ["decide", "INVALID_ARGUMENT", "INVALID_ARGUMENT"],
    ["commit", "INVALID_ARGUMENT", "INVALID_ARGUMENT"],
  ]);
});

serviceTest("a hold is committed from another process by its token, once", async () => {
  const client = connect(variable("TOLLKEEPER_ADDR"));
  const user = random();
  const { token } = await client.hold({ tokens: user }, 400);
  const commits = [await client.commit(token, { used: 42 }), await client.commit(token, { used: 43 })];
  assert.deepEqual(
    commits.flatMap(({ charges }) => charges.map(({ outcome }) => outcome)),
    ["APPLIED", "REPEATED"],
  );
  assert.equal((await client.read({ tokens: user })).statuses[0]?.used, 42);
});

serviceTest("estimates by kind are weighed", async () => {
  const client = connect(variable("TOLLKEEPER_ADDR"));
  await using hold = await client.hold({ kinds: random() }, undefined, { input: 100, output: 5 });
  assert.equal(hold.decision.remaining, 750);
});

serviceTest("all calls share one connection", async () => {
  const relay = await Relay.start();
  const client = connect(relay.address);
  await Promise.all(Array.from({ length: 50 }, () => client.check({ three: random() })));
  assert.equal(relay.connections, 1);
});

serviceTest("a client finds a service that was down", async () => {
  const relay = await Relay.start();
  const client = connect(relay.address);
  assert.equal((await client.check({ three: random() })).failed, false);
  await relay.stop();
  assert.equal((await client.check({ three: random() })).failed, true);
  await relay.listen();
  while ((await client.check({ three: random() })).failed) await pause(10);
});

serviceTest("a commit that gets no answer in time is sent again, and counts once", async () => {
  const relay = await Relay.start();
  const outcomes: string[] = [];
  const client = connect(relay.address, {
    timeoutMs: 2_000,
    onCall: (method, _seconds, outcome) => {
      outcomes.push(`${method} ${outcome}`);
      relay.resume();
    },
  });
  const user = random();
  {
    await using hold = await client.hold({ tokens: user }, 400);
    hold.used = 42;
    relay.stall();
  }
  assert.deepEqual(outcomes, ["decide ok", "commit DEADLINE_EXCEEDED", "commit ok"]);
  assert.equal((await client.read({ tokens: user })).statuses[0]?.used, 42);
});
