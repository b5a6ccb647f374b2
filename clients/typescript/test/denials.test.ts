// Denials that a client remembers, by the requests that reach the service in memory.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fake } from "tollkeeper/testing";

test("one denial more than 10,000 makes all be forgotten", async () => {
  const limiter = fake("shop", { rememberDenialsMs: 60_000 }).deny({ path: "/" });
  const deny = async (user: number) => {
    assert.equal((await limiter.decide([{ path: "/" }, { user: String(user) }])).allowed, false);
    return limiter.calls.length;
  };
  for (let user = 0; user < 10_000; user++) await deny(user);
  assert.equal(await deny(0), 10_000);
  assert.equal(await deny(10_000), 10_001);
  assert.equal(await deny(0), 10_002);
});

test("the times of a denial pass until it is forgotten", async (context) => {
  let now = 0;
  context.mock.method(performance, "now", () => now);
  const limiter = fake("shop", { rememberDenialsMs: 120_000 }).deny({ user: "alice" });
  const shown = [];
  for (now of [0, 20_500, 59_500, 60_000]) {
    const { resetSeconds, retryAfterSeconds, statuses } = await limiter.decide({ user: "alice" });
    shown.push([limiter.calls.length, resetSeconds, retryAfterSeconds, statuses[0]?.resetSeconds]);
  }
  assert.deepEqual(shown, [
    [1, 60, 60, 60],
    [1, 39.5, 39.5, 39.5],
    [1, 0.5, 1, 0.5],
    [2, 60, 60, 60],
  ]);
});

test("requests with other bytes are not equal", async () => {
  const limiter = fake("shop", { rememberDenialsMs: 60_000 }).deny({ user: "a" });
  for (const user of ["a", Buffer.of(0xff), Buffer.of(0xfe), "\ufffd"]) {
    await limiter.decide([{ user: "a" }, { user }]);
  }
  assert.equal(limiter.calls.length, 4);
});

test("the denial of a long request is not remembered, and its key is not made", async (context) => {
  const keys = context.mock.method(JSON, "stringify");
  const limiter = fake("shop", { rememberDenialsMs: 60_000 }).deny({ path: "/" });
  for (const bytes of [500, 500, 2_000, 2_000]) await limiter.decide([{ path: "/" }, { user: "x".repeat(bytes) }]);
  assert.deepEqual([limiter.calls.length, keys.mock.callCount()], [3, 2]);
});

test("a closed client gives no denial again", async () => {
  const limiter = fake("shop", { rememberDenialsMs: 60_000, log: () => {} }).deny({ user: "alice" });
  assert.deepEqual([(await limiter.decide({ user: "alice" })).allowed, limiter.calls.length], [false, 1]);
  await limiter.close();
  assert.equal((await limiter.decide({ user: "alice" })).failed, true);
});
