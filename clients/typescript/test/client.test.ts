import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { getEventListeners, on, once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { InterceptingCall } from "@grpc/grpc-js";
import { type Call, type CallError, Client, type Descriptors, type Limiter, type OwnLimit } from "tollkeeper";
import { rateLimit } from "tollkeeper/express";
import { Client as FetchClient } from "tollkeeper/fetch";
import { fake } from "tollkeeper/testing";
import { Relay } from "./relay.js";
import { connect, goneAddress, PATIENT_MS, random, serviceTest, silentAddress, variable } from "./services.js";

const gone = await goneAddress();
const silent = await silentAddress();

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
    (client) => client.hold({ a: "b" }, { hitsByKind: { input: -1 } }),
    /hitsByKind\.input: .*not -1/,
  ],
  [
    "a limit of the caller without a unit",
    (client) => client.decide({ entries: { a: "b" }, limit: { hits: 1, unit: "FORTNIGHT" as "WEEK" } }),
    /descriptors\[0\]\.limit\.unit: must be one of: SECOND, MINUTE/,
  ],
  [
    "a limit of the caller that is too high",
    (client) => client.decide([{ a: "b" }, { entries: { a: "b" }, limit: { hits: 2 ** 32, unit: "DAY" } }]),
    /descriptors\[1\]\.limit\.hits: .* 0 to 4294967295, not 4294967296/,
  ],
  [
    "usage of a hold that is not whole",
    async (client) => {
      (await client.hold({ a: "b" })).used = 0.5;
    },
    /used: .*not 0.5/,
  ],
  [
    "an option that a hold does not have",
    (client) => client.hold({ a: "b" }, { hits: 400 } as object),
    /hits: is not an option/,
  ],
  [
    "an option that a call does not have",
    (client) => client.decideAll([{ descriptors: { a: "b" } }, { descriptors: { a: "b" }, hit: 2 } as object as Call]),
    /calls\[1\]\.hit: is not an option/,
  ],
  [
    "hits in place of a call",
    (client) => client.decideCall(2 as unknown as Call),
    /options: must be an object, not of the type number/,
  ],
  [
    "an option that a descriptor does not have",
    (client) => client.decide({ entries: { a: "b" }, limits: { hits: 1, unit: "DAY" } } as object as Descriptors),
    /descriptors\[0\]\.limits: is not an option/,
  ],
  [
    "an option that a limit of the caller does not have",
    (client) => client.decide({ entries: { a: "b" }, limit: { hits: 1, unit: "DAY", units: 2 } as OwnLimit }),
    /descriptors\[0\]\.limit\.units: is not an option/,
  ],
  [
    "an option that a commit does not have",
    (client) => client.commit("token", { hits: 2 } as object),
    /hits: is not an option/,
  ],
  [
    "an option that a renewal does not have",
    async (client) => (await client.hold({ a: "b" })).renew({ hits: 2 } as object),
    /hits: is not an option/,
  ],
  [
    "an option that middleware does not have",
    async (client) => rateLimit(client, () => undefined, { denied: () => undefined } as object),
    /denied: is not an option/,
  ],
  [
    "an estimate in place of the options of a hold",
    (client) => client.hold({ a: "b" }, 400 as unknown as object),
    /options: must be an object, not of the type number/,
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
  const invalid: [options: object, message: RegExp][] = [
    [{ timeoutMs: 0 }, /timeoutMs: must be above 0 and at most 86400000, not 0/],
    [{ timeoutMs: "50" }, /timeoutMs: must be a number, not of the type string/],
    [{ timeoutMs: null }, /timeoutMs: must be a number, not of the type null/],
    [{ commitTimeoutMs: 3e9 }, /commitTimeoutMs: must be above 0 and at most 86400000, not 3000000000/],
    [{ commitTimeoutMs: Number.POSITIVE_INFINITY }, /commitTimeoutMs: .* at most 86400000, not Infinity/],
    [{ rememberDenialsMs: -1 }, /rememberDenialsMs: must be at least 0, not -1/],
    [{ rememberDenialsMs: "9" }, /rememberDenialsMs: must be a number, not of the type string/],
    [{ onfailure: "deny" }, /onfailure: is not an option/],
    [{ onfailure: undefined }, /onfailure: is not an option/],
    [{ onCall: null }, /onCall: must be a function, not of the type null/],
    [{ onFailure: console }, /onFailure: must be one of/],
    [{ requireLimit: "false" }, /requireLimit: must be a boolean, not of the type string/],
    [{ signal: {} }, /signal: must be an AbortSignal/],
    [null as unknown as object, /options: must be an object, not of the type null/],
  ];
  for (const [options, message] of invalid) {
    assert.throws(() => new Client(gone, "shop", options), message);
    assert.throws(() => new FetchClient("http://localhost", "shop", options), message);
    assert.throws(() => connect(gone).with(options), message);
  }
  assert.throws(
    () => new Client(gone, "shop", { onFailure: "open" as "allow" }),
    /onFailure: must be one of: allow, deny/,
  );
  for (const log of [console, { warn() {} }, null, 5]) {
    assert.throws(() => new Client(gone, "shop", { log } as object), /log: must be a function, not of the type/);
  }
  for (const tls of [true, null])
    assert.throws(() => new Client(gone, "shop", { tls } as object), /tls: must be an object/);
  assert.throws(
    () => new Client(gone, "shop", { tls: { servername: "a" } as object }),
    /tls\.servername: is not an option/,
  );
  assert.throws(() => new Client(gone, "shop", { tls: { cert: Buffer.from("") } }), /tls: cert and key/);
});

test("an aborted call is denied without onFailure and without a line in the log", async () => {
  const lines: string[] = [];
  const client = connect(silent, { log: (line) => lines.push(line) });
  const controller = new AbortController();
  const limiter = client.with({ signal: controller.signal });
  const decision = limiter.decide({ a: "b" });
  controller.abort();
  for (const { allowed, error } of [await decision, await limiter.decide({ a: "b" })]) {
    assert.deepEqual([allowed, error?.code], [false, "CANCELLED"]);
  }
  assert.deepEqual(lines, []);
});

test("one signal ends many calls, by one listener that is removed", async () => {
  const controller = new AbortController();
  const { signal } = controller;
  const limiter = connect(silent).with({ signal });
  const shared = connect(gone, { signal });
  await Promise.all(Array.from({ length: 20 }, () => shared.decide({ a: "b" })));
  assert.equal(getEventListeners(signal, "abort").length, 0);
  const decisions = Array.from({ length: 20 }, () => limiter.decide({ a: "b" }));
  assert.equal(getEventListeners(signal, "abort").length, 1);
  controller.abort();
  for (const { error } of await Promise.all(decisions)) assert.equal(error?.code, "CANCELLED");
  assert.equal(getEventListeners(signal, "abort").length, 0);
});

test("an attempt to connect that gets no answer is followed by another", async () => {
  const server = createServer((socket) => socket.unref()).listen(0, "127.0.0.1");
  after(() => server.close());
  await once(server, "listening");
  const seen = on(server, "connection");
  const client = connect(`127.0.0.1:${(server.address() as AddressInfo).port}`);
  for (let attempt = 0; attempt < 3; attempt++) await seen.next();
  await client.close();
});

test("a peer that accepts and says nothing has one connection at a time, and none after close", async () => {
  const open = new Set<Socket>();
  const server = createServer((socket) => {
    open.add(socket.on("error", () => {}).on("close", () => open.delete(socket)));
    socket.resume();
  }).listen(0, "127.0.0.1");
  after(() => server.close());
  await once(server, "listening");
  const seen = on(server, "connection");
  const target = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  const client = connect(target);
  for (let attempt = 0; attempt < 3; attempt++) {
    const [socket] = (await seen.next()).value;
    if (attempt < 2) await once(socket, "close");
  }
  assert.equal(open.size, 1);
  const [last] = open;
  await client.close();
  if (last && !last.closed) await once(last, "close");
  assert.equal(open.size, 0);
});

test("a setting that is not valid opens no connection", async () => {
  let connections = 0;
  const server = createServer(() => connections++).listen(0, "127.0.0.1");
  after(() => server.close());
  await once(server, "listening");
  const target = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  const options: object[] = [{ timeout: 5 }, { timeoutMs: 0 }, { log: 5 }, { tls: { servername: "a" } }];
  for (const one of options) assert.throws(() => new Client(target, "shop", one));
  const seen = once(server, "connection");
  const client = connect(target);
  await seen;
  assert.equal(connections, 1);
  await client.close();
});

test("close says how many calls it has ended", async () => {
  const lines: string[] = [];
  const client = connect(silent, { log: (line) => lines.push(line) });
  const calls = Array.from({ length: 10 }, () => client.decide({ a: "b" }));
  await client.close();
  await Promise.all(calls);
  assert.match(lines[0] ?? "", /1 call of/);
  assert.match(lines[1] ?? "", /9 calls of/);
});

test("close says how many commits have failed while it waited for them", async () => {
  const lines: string[] = [];
  const client = fake("shop", { log: (line) => lines.push(line) }).fail("UNAVAILABLE");
  await client.commit("token");
  const commits = Array.from({ length: 3 }, () => client.commit("token"));
  await client.close();
  assert.match(lines.join("\n"), /1 commit of .*\n.*3 commits of /);
  for (const { error } of await Promise.all(commits)) assert.equal(error?.code, "UNAVAILABLE");
});

/** Answers by `fetch` when it is told to, and says what was sent. */
function byHand() {
  const sent: ((answer: unknown) => void)[] = [];
  const bodies: unknown[] = [];
  const fetch = (_url: unknown, init: RequestInit = {}) => {
    bodies.push(JSON.parse(String(init.body)));
    return new Promise<Response>((resolve) => sent.push((answer) => resolve(Response.json(answer))));
  };
  return { fetch: fetch as typeof globalThis.fetch, sent, bodies };
}

test("close waits no longer than a commit for a hold whose signal is aborted", async () => {
  const { fetch, sent } = byHand();
  const client = new FetchClient("http://localhost:1", "shop", { fetch, timeoutMs: 86_400_000, commitTimeoutMs: 10 });
  const leaving = new AbortController();
  const holding = client.with({ signal: leaving.signal }).hold({ user: "a" });
  leaving.abort();
  assert.equal((await holding).allowed, false);
  const late = pause(10_000, "too late", { ref: false });
  assert.equal(await Promise.race([client.close(), late]), undefined);
  assert.equal(sent.length, 1);
});

test("a hold that is left while close waits is committed", async () => {
  const { fetch, sent, bodies } = byHand();
  const client = new FetchClient("http://localhost:1", "shop", {
    fetch,
    timeoutMs: PATIENT_MS,
    commitTimeoutMs: 60_000,
  });
  const first = client.commit("first");
  const closed = client.close();
  const second = client.commit("second", { used: 3 });
  for (const answer of sent) answer({ results: [{ charges: [] }] });
  assert.deepEqual([(await first).error, (await second).error], [undefined, undefined]);
  await closed;
  assert.equal((await client.commit("third")).error?.code, "CANCELLED");
  assert.equal(bodies.length, 2);
});

test("a commit that ends after a renewal leaves the new hold to be committed", async () => {
  const commits: string[] = [];
  let answer = () => {};
  const fetch = async (url: unknown, init: RequestInit = {}) => {
    const verdict = (hold: string) => ({ code: "OK", hold });
    if (String(url).endsWith("decide")) return Response.json({ verdicts: [verdict("token")] });
    if (String(url).endsWith("renew")) return Response.json({ results: [{ commit: {}, verdict: verdict("renewed") }] });
    commits.push(JSON.parse(String(init.body)).commits[0].hold);
    if (commits.length === 1) await new Promise<void>((resolve) => (answer = resolve));
    return Response.json({ results: [{}] });
  };
  const client = new FetchClient("http://localhost:1", "shop", {
    fetch: fetch as typeof globalThis.fetch,
    timeoutMs: PATIENT_MS,
    commitTimeoutMs: PATIENT_MS,
  });
  {
    await using hold = await client.hold({ user: "a" });
    const committing = hold.commit();
    await hold.renew({ used: 1 });
    answer();
    await committing;
  }
  await client.close();
  assert.deepEqual(commits, ["token", "renewed"]);
});

test("a hold or a renewal that lacks a limit is given back", async () => {
  const verdict = (hold: string) => ({ code: "OK", hold, statuses: [{ rule: "user" }, { descriptor: 1, rule }] });
  const commits: unknown[] = [];
  let rule = "user";
  const fetch = async (url: unknown, init: RequestInit = {}) => {
    for (const { hold, used } of JSON.parse(String(init.body)).commits ?? []) commits.push([hold, used]);
    if (String(url).endsWith("decide")) return Response.json({ verdicts: [verdict("token")] });
    return Response.json({ results: [{ commit: {}, verdict: verdict("renewed") }] });
  };
  const options = { fetch: fetch as typeof globalThis.fetch, timeoutMs: PATIENT_MS, requireLimit: true };
  const client = new FetchClient("http://localhost:1", "shop", options);
  const descriptors: Descriptors = [{ user: "a" }, { typo: "a" }];
  const hold = await client.hold(descriptors);
  rule = "";
  await assert.rejects(client.decide(descriptors), /no limit applies to typo/);
  await assert.rejects(client.hold(descriptors), /no limit applies to typo/);
  await assert.rejects(hold.renew({ used: 1 }), /no limit applies to typo/);
  hold.used = 2;
  await hold.commit();
  await client.close();
  assert.deepEqual(commits, [
    ["token", 0],
    ["renewed", 0],
  ]);
});

test("a hook that waits for close delays no close", async () => {
  const seen: string[] = [];
  const closing = async () => {
    await client.close();
    seen.push("closed");
  };
  const client = fake("shop", { onCall: closing, log: closing }).fail("UNAVAILABLE");
  await client.commit("token");
  await client.close();
  assert.deepEqual(seen, ["closed", "closed"]);
});

test("text of others begins no line of the log, and is bounded", async () => {
  const lines: string[] = [];
  const client = fake("a\nb", { log: (line) => lines.push(line) });
  client.fail("UNAVAILABLE");
  const unsafe = "\0\r\n\x1b\x7f\x85\u2028\u2029\u202a\u202e\u2066\u2069";
  const failing = (message: string) => {
    throw new Error(message);
  };
  await client.with({ onFailure: () => failing(unsafe) }).decide({ a: "b" });
  assert.deepEqual(
    lines.map((line) => line.trimEnd()),
    [
      'tollkeeper: 1 call of the domain "a b" had no answer and was decided by onFailure; the last: UNAVAILABLE: the fake was told to fail (target a fake)',
      "tollkeeper: onFailure has thrown, so that its call is denied: Error:",
    ],
  );
});

test("a view has what it does not change from its client", async () => {
  const calls: string[] = [];
  const client = connect(gone, { onFailure: "deny", onCall: (method) => calls.push(method) });
  const view = client.with({ domain: "another", timeoutMs: 20 }).with({ onFailure: undefined as unknown as "deny" });
  assert.equal((await view.decide({ a: "b" })).allowed, false);
  assert.deepEqual(calls, ["decide"]);
});

test("a line of the log has the number of calls since the last one, also when the outage is over", async (context) => {
  const lines: string[] = [];
  const limiter = fake("shop", { log: (line) => lines.push(line) }).fail("UNAVAILABLE");
  let now = 0;
  context.mock.method(performance, "now", () => now);
  const call = async (seconds: number, client: Limiter, count: number) => {
    now = seconds * 1_000;
    await client.decideAll(new Array(count).fill({ descriptors: { a: "b" } }));
  };
  await call(0, limiter, 2);
  await call(1, limiter, 3);
  await call(1, limiter.with({ domain: "another" }), 1);
  await call(59, limiter.with({ timeoutMs: 10 }), 4);
  await call(60, limiter, 5);
  await call(61, limiter, 6);
  limiter.fail();
  await call(119, limiter, 1);
  assert.equal(lines.length, 3);
  await call(120, limiter, 1);
  await call(121, limiter.fail("UNAVAILABLE"), 7);
  await limiter.close();
  const end = "decided by onFailure; the last: UNAVAILABLE: the fake was told to fail (target a fake)";
  assert.deepEqual(lines, [
    `tollkeeper: 2 calls of the domain "shop" had no answer and were ${end}`,
    `tollkeeper: 1 call of the domain "another" had no answer and was ${end}`,
    `tollkeeper: 12 calls of the domain "shop" had no answer and were ${end}`,
    `tollkeeper: 6 calls of the domain "shop" had no answer and were ${end}`,
    `tollkeeper: 7 calls of the domain "shop" had no answer and were ${end}`,
  ]);
});

test("a call looks at no other domains of the log while nothing is due", async (context) => {
  const lines: string[] = [];
  const limiter = fake("shop", { log: (line) => lines.push(line) }).fail("UNAVAILABLE");
  let now = 0;
  context.mock.method(performance, "now", () => now);
  const domains = Array.from({ length: 100 }, (_, index) => limiter.with({ domain: `shop ${index}` }));
  const callAll = async (seconds: number) => {
    now = seconds * 1_000;
    for (const domain of domains) await domain.decide({ a: "b" });
  };
  for (const seconds of [0, 1, 60, 61]) await callAll(seconds);
  assert.equal(lines.length, 200);
  const steps = context.mock.method(Object.getPrototypeOf(new Map()[Symbol.iterator]()), "next");
  await callAll(62);
  limiter.fail();
  await callAll(63);
  steps.mock.restore();
  assert(steps.mock.callCount() < domains.length, `${steps.mock.callCount()} steps in 200 calls`);
  await callAll(120);
  assert.equal(lines.length, 300);
  assert.match(lines[299] ?? "", /3 calls of the domain "shop 99"/);
});

test("an onFailure that answers with a promise denies", async () => {
  const onFailure = (async () => true) as unknown as () => boolean;
  assert.equal((await connect(gone, { onFailure }).decide({ a: "b" })).allowed, false);
});

test("an onFailure and a log that fail later change no answer", async () => {
  const fail = async () => {
    throw new Error("a bug");
  };
  const lines: string[] = [];
  const client = fake("shop", { log: (line) => lines.push(line), onFailure: fail as unknown as () => boolean });
  assert.equal((await client.fail("UNAVAILABLE").decide({ a: "b" })).allowed, false);
  // The test would fail by a rejection that nobody handles.
  assert.equal((await fake("shop", { log: fail }).fail("UNAVAILABLE").decide({ a: "b" })).allowed, true);
  await pause(0);
  assert.match(lines.join("\n"), /onFailure has thrown.*a bug/);
});

test("a hook that fails later changes no answer", async () => {
  const lines: string[] = [];
  const client = connect(gone, {
    log: (line) => lines.push(line),
    onCall: async () => {
      throw new Error("a bug in the hook");
    },
  });
  assert.equal((await client.decide({ a: "b" })).allowed, true);
  assert.match(lines.join("\n"), /onCall has thrown: Error: a bug in the hook/);
});

test("a request passes interceptors of the caller", async () => {
  const seen: string[] = [];
  const client = connect(gone, {
    grpc: {
      interceptors: [
        (options, nextCall) => {
          seen.push(options.method_definition.path);
          return new InterceptingCall(nextCall(options));
        },
      ],
    },
  });
  await client.decide({ a: "b" });
  assert.deepEqual(seen, ["/tollkeeper.v1.Tollkeeper/Decide"]);
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

serviceTest("the generated code is that of the .proto files", async () => {
  const folder = mkdtempSync(join(tmpdir(), "generated-"));
  after(() => rmSync(folder, { recursive: true }));
  const root = new URL("../../", import.meta.url).pathname;
  execFileSync(join(root, "scripts/generate"), [folder]);
  execFileSync("diff", ["--recursive", join(root, "src/generated"), folder]);
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
  const { token } = await client.hold({ tokens: user }, { estimate: 400 });
  const commits = [await client.commit(token, { used: 42 }), await client.commit(token, { used: 43 })];
  assert.deepEqual(
    commits.flatMap(({ charges }) => charges.map(({ outcome }) => outcome)),
    ["APPLIED", "REPEATED"],
  );
  assert.equal((await client.read({ tokens: user })).statuses[0]?.used, 42);
});

serviceTest("a limit of the caller replaces the one of the rules", async () => {
  const client = connect(variable("TOLLKEEPER_ADDR"));
  const entries = { three: random() };
  const { limit, statuses } = await client.decide({ entries, limit: { hits: 7, unit: "HOUR", multiplier: 2 } });
  assert.deepEqual([limit, statuses[0]?.limit?.unit, statuses[0]?.limit?.multiplier], [7, "HOUR", 2]);
});

serviceTest("a renewal commits what was used, and holds what comes next", async () => {
  const client = connect(variable("TOLLKEEPER_ADDR"));
  const user = random();
  {
    await using hold = await client.hold({ tokens: user }, { estimate: 400 });
    assert.equal((await hold.renew({ used: 300, estimate: 200 })).allowed, true);
    assert.equal((await client.read({ tokens: user })).statuses[0]?.used, 500);
    hold.used = 42;
  }
  assert.equal((await client.read({ tokens: user })).statuses[0]?.used, 342);
});

serviceTest("a hold whose renewal got no answer is committed with all that was used", async () => {
  const relay = await Relay.start();
  const client = connect(relay.address);
  const user = random();
  {
    await using hold = await client.hold({ tokens: user }, { estimate: 400 });
    await relay.stop();
    assert.equal((await hold.renew({ used: 300, estimate: 200 })).failed, true);
    hold.used = 42;
    await relay.listen();
  }
  assert.equal((await connect(variable("TOLLKEEPER_ADDR")).read({ tokens: user })).statuses[0]?.used, 342);
});

serviceTest("estimates by kind are weighed", async () => {
  const client = connect(variable("TOLLKEEPER_ADDR"));
  await using hold = await client.hold({ kinds: random() }, { hitsByKind: { input: 100, output: 5 } });
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
