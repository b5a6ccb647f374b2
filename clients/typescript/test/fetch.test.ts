// What is special about the client that uses `fetch`.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { CallError, Client } from "tollkeeper/fetch";

/** A client whose requests get this answer. */
function answered(answer: () => Response, seen: [url: string, init: RequestInit | undefined][] = []): Client {
  const fetch: typeof globalThis.fetch = async (url, init) => {
    seen.push([String(url), init]);
    return answer();
  };
  return new Client("https://limits.example/base/", "shop", { fetch, headers: { "x-key": "k" }, log: () => {} });
}

test("a request goes to the path below the URL, with the timeout and the headers of the client", async () => {
  const seen: [string, RequestInit | undefined][] = [];
  await answered(() => Response.json({ verdicts: [{ code: "OK", statuses: [] }] }), seen).decide({ user: "alice" }, 2);
  const [url, init] = seen[0] as [string, RequestInit];
  assert.equal(url, "https://limits.example/base/v1/decide");
  const headers = init.headers as Record<string, string>;
  assert.deepEqual([headers["x-key"], headers["grpc-timeout"]], ["k", "50m"]);
  const { domain, calls } = JSON.parse(init.body as string);
  assert.deepEqual([domain, calls[0].hits], ["shop", 2]);
  assert.deepEqual(calls[0].descriptors[0].entries, [{ key: "user", value: "alice" }]);
});

test("an answer that is none of the service is a failure, by its status", async () => {
  for (const [answer, code] of [
    [() => new Response("<html>", { status: 502 }), "UNAVAILABLE"],
    [() => new Response(null, { status: 301, headers: { location: "/" } }), "UNKNOWN"],
    [() => new Response("<html>"), "UNKNOWN"],
    [() => Response.json({}), "UNKNOWN"],
    [
      () => Response.json({ error: { code: "PERMISSION_DENIED", message: "no" } }, { status: 403 }),
      "PERMISSION_DENIED",
    ],
    [() => Response.json({ error: { code: "random-4711", message: "no" } }, { status: 500 }), "UNKNOWN"],
    [() => Response.json({ verdicts: [{ error: { code: "random-4711", message: "no" } }] }), "UNKNOWN"],
    [() => Response.json({ verdicts: [{ code: "PENDING" }] }), "UNKNOWN"],
    [() => Response.json({ verdicts: [{}] }), "UNKNOWN"],
  ] as const) {
    const decision = await answered(answer).decide({ user: "alice" });
    assert.deepEqual([decision.failed, decision.error?.code], [true, code], decision.error?.message);
  }
  assert.equal(CallError.of(4711, "a code of gRPC that does not exist").code, "UNKNOWN");
});

test("what an answer has in place of numbers and texts is a failure", async () => {
  const status = (change: object) => ({ verdicts: [{ code: "OK", statuses: [{ code: "OK", ...change }] }] });
  for (const answer of [
    status({ currentLimit: { requestsPerUnit: "1\r\nX: 1" } }),
    status({ limitRemaining: "1" }),
    status({ durationUntilReset: "soon" }),
    status({ descriptor: 7 }),
    status({ descriptor: -1 }),
    status({ descriptor: "length" }),
    status({ descriptor: "0" }),
    status({ rule: {} }),
    { verdicts: [{ code: "OK", hold: {} }] },
    { verdicts: [null] },
    { verdicts: 5 },
    { verdicts: [{ error: { code: "INTERNAL", message: { toString: 1 } } }] },
  ]) {
    const client = answered(() => Response.json(answer)).with({ requireLimit: true });
    assert.equal((await client.decide({ user: "alice" })).error?.code, "UNKNOWN", JSON.stringify(answer));
  }
  for (const [reset, seconds] of [
    ["-5s", 0],
    ["1e300s", 315_576_000_000],
  ] as const) {
    const client = answered(() => Response.json(status({ durationUntilReset: reset })));
    assert.equal((await client.decide({ user: "alice" })).resetSeconds, seconds);
  }
});

test("a text of the service is cut in the log, and begins no line", async () => {
  const lines: string[] = [];
  const message = `a\nb${"x".repeat(1e6)}`;
  const fetch = async () => Response.json({ error: { code: "INTERNAL", message } }, { status: 500 });
  const client = new Client("https://limits.example", "shop", { fetch, log: (line) => lines.push(line) });
  await client.decide({ user: "alice" });
  assert.match(lines.join("\n"), /: INTERNAL: a bx{297}… \(target/);
});

test("a call of a domain that the service does not have is logged, also one that holds or renews", async () => {
  const lines: string[] = [];
  const verdict = { code: "OK", statuses: [{ code: "OK" }], hold: "token", domainUnknown: true };
  const fetch: typeof globalThis.fetch = async () =>
    Response.json({ verdicts: [verdict], results: [{ commit: {}, verdict }] });
  const client = new Client("https://limits.example", "shop", { fetch, log: (line) => lines.push(line) });
  assert.equal((await client.decide({ user: "alice" })).allowed, true);
  await client.check({ user: "alice" });
  const hold = await client.hold({ user: "alice" });
  assert.equal((await hold.renew()).allowed, true);
  await client.close();
  const end = "met no limit, because the service has no such domain (target https://limits.example/v1/, with TLS)";
  assert.deepEqual(lines, [
    `tollkeeper: 1 call of the domain "shop" ${end}`,
    `tollkeeper: 3 calls of the domain "shop" ${end}`,
  ]);
});

test("an answer with the status 413 denies the call, whoever gives it and whatever onFailure says", async () => {
  for (const answer of [
    () => new Response("<html>", { status: 413 }),
    () => Response.json({ error: { code: "TOO_LARGE", message: "no" } }, { status: 413 }),
  ]) {
    const { allowed, failed, error, retryAfterSeconds } = await answered(answer).decide({ user: "alice" });
    assert.deepEqual([allowed, failed, error?.code, retryAfterSeconds], [false, false, "OUT_OF_RANGE", undefined]);
  }
});

test("a value of 64 MiB is denied within the timeout and without a request, whatever onFailure says", async () => {
  const seen: [string, RequestInit | undefined][] = [];
  const client = answered(() => Response.json({}), seen);
  for (const value of ["x".repeat(64 * 1_024 ** 2), new Uint8Array(64 * 1_024 ** 2)]) {
    const { allowed, failed, error } = await client.decide({ user: value });
    assert.deepEqual([allowed, failed, error?.code, seen.length], [false, false, "OUT_OF_RANGE", 0]);
  }
});

test("a call ends with its timeout and with the client, whatever its fetch does", async () => {
  let fail = (_error: Error) => {};
  const fetch = () => new Promise<Response>((_, reject) => (fail = reject));
  const client = new Client("https://limits.example", "shop", { fetch, timeoutMs: 20, log: () => {} });
  assert.equal((await client.decide({ user: "alice" })).error?.code, "DEADLINE_EXCEEDED");
  // The test would fail by a rejection that nobody handles.
  fail(new Error("late"));
  const decision = client.with({ timeoutMs: 60_000 }).decide({ user: "alice" });
  await client.close();
  assert.equal((await decision).error?.code, "CANCELLED");
});

test("a call that is over leaves neither a timer nor a signal", async () => {
  setFlagsFromString("--expose-gc");
  const collect: () => void = runInNewContext("gc");
  const signals: WeakRef<AbortSignal>[] = [];
  const fetch: typeof globalThis.fetch = async (_, init) => {
    signals.push(new WeakRef(init?.signal as AbortSignal));
    return Response.json({ verdicts: [{ code: "OK" }] });
  };
  const timers = () => process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
  const before = timers();
  const client = new Client("https://limits.example", "shop", { fetch, timeoutMs: 60_000 });
  for (let call = 0; call < 100; call++) assert.equal((await client.decide({ user: "alice" })).failed, false);
  assert.equal(timers(), before);
  const left = () => signals.filter((signal) => signal.deref()).length;
  for (let turn = 0; turn < 50 && left() > 10; turn++) {
    await pause(10);
    collect();
  }
  assert.equal(signals.length, 100);
  assert(left() <= 10, `${left()} signals`);
});

test("a URL and headers that are not valid are named, without what may be secret", () => {
  for (const part of ["alice@", ":secret@", "alice?key=secret"]) {
    const url = `http://${part}limits.example`;
    assert.throws(() => new Client(url, "shop"), /url: must have no user and no query; use headers/);
  }
  for (const [name, value] of [
    ["x-key", "sec\nret"],
    ["x key", "secret"],
  ] as const) {
    const message = `headers: "${name}" must have a valid name and value`;
    assert.throws(() => new Client("http://limits.example", "shop", { headers: { [name]: value } }), { message });
  }
});

test("a half of a surrogate pair is U+FFFD, as over gRPC", async () => {
  const seen: [string, RequestInit | undefined][] = [];
  const client = answered(() => Response.json({ results: [{}] }), seen).with({ domain: "shop \udc00" });
  const half = '\\ud800 \\"\ud800 \u{1f600}';
  await client.decideCall({ descriptors: { user: half }, id: half, hitsByKind: { [half]: 1 } });
  await client.commit("token", { end: half, usedByKind: { [half]: 1 } });
  const whole = '\\ud800 \\"\ufffd \u{1f600}';
  const [call, commit] = seen.map(([, init]) => JSON.parse(init?.body as string));
  assert.equal(call.domain, "shop \ufffd");
  const [{ id, hitsByKind, descriptors }] = call.calls;
  assert.deepEqual([id, hitsByKind, descriptors[0].entries[0].value], [whole, { [whole]: 1 }, whole]);
  const [{ end, usedByKind }] = commit.commits;
  assert.deepEqual([end, usedByKind], [whole, { [whole]: 1 }]);
});

test("bytes that are no UTF-8 are a mistake of the caller, whatever onFailure says", async () => {
  const client = answered(() => Response.json({}));
  await assert.rejects(client.decide({ user: new Uint8Array([0xff]) }), /no UTF-8/);
  await assert.rejects(client.decide([[new Uint8Array([0xfe]), "x"]]), /no UTF-8/);
});

test("a mark of byte order is a part of its value", async () => {
  const seen: [string, RequestInit | undefined][] = [];
  const client = answered(() => Response.json({}), seen);
  await client.decide({ user: "\u{feff}a" });
  await client.decide({ user: Buffer.from("\u{feff}a") });
  for (const [, init] of seen) {
    assert.equal(JSON.parse(init?.body as string).calls[0].descriptors[0].entries[0].value, "\u{feff}a");
  }
});

test("it loads neither gRPC nor a module of Node", () => {
  const loaded = new Set<string>();
  const load = (file: URL) => {
    if (loaded.has(file.href)) return;
    loaded.add(file.href);
    const text = readFileSync(file, "utf8");
    for (const [, name] of text.matchAll(/^(?:import|export) .*?from "(.*?)";$/gms)) {
      assert(name?.startsWith("./"), `${file} loads ${name}`);
      load(new URL(name, file));
    }
    assert(!/\b(Buffer|process)\./.test(text), `${file} needs Node`);
  };
  load(new URL("../../dist/fetch.js", import.meta.url));
  assert(loaded.size > 5, `${loaded.size} modules`);
});
