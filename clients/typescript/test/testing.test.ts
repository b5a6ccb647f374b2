// The client for unit tests, which is the real one above a service in memory.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fake } from "tollkeeper/testing";

test("a fake allows what it was not told to deny, and lists the calls that it saw", async () => {
  const limiter = fake().deny({ user: "bob" });
  const { allowed, failed, limit } = await limiter.decide({ path: "/login", user: "alice" });
  assert.deepEqual([allowed, failed, limit], [true, false, undefined]);
  const denied = await limiter.decide([{ user: "alice" }, { user: "bob" }], 2);
  assert.deepEqual([denied.allowed, denied.headers()["Retry-After"]], [false, "60"]);
  assert.deepEqual(limiter.calls, [
    { mode: "take", descriptors: ["path=/login,user=alice"], hits: 1 },
    { mode: "take", descriptors: ["user=alice", "user=bob"], hits: 2 },
  ]);
});

test("a fake limits a descriptor to a number of hits, in every mode", async () => {
  const limiter = fake().limit({ user: "alice" }, 5);
  const alice = { user: "alice" };
  const shown = async (decision: ReturnType<typeof limiter.decide>) => {
    const { allowed, remaining } = await decision;
    return [allowed, remaining];
  };
  assert.deepEqual(await shown(limiter.decide(alice, 3)), [true, 2]);
  assert.deepEqual(await shown(limiter.decide(alice, 3)), [false, 0]);
  assert.deepEqual(await shown(limiter.check(alice)), [true, 2]);
  assert.equal((await limiter.part(alice, 3)).hits, 2);
  assert.deepEqual(await shown(limiter.part(alice, 0)), [false, 0]);
  assert.deepEqual(await shown(limiter.decide(alice, 0)), [false, 0]);
  assert.deepEqual(await shown(limiter.part(alice, 3)), [false, 0]);
  assert.deepEqual(await shown(limiter.check(alice)), [false, 0]);
  assert.deepEqual(await shown(limiter.refund(alice, 1)), [true, 1]);
  assert.deepEqual(await shown(limiter.debit(alice, 3)), [false, 0]);
  assert.equal((await limiter.read(alice)).statuses[0]?.used, 7);
  assert.deepEqual(await shown(limiter.decide({ user: "bob" }, 100)), [true, 0]);
});

test("a fake commits holds, and lists the commits that it saw", async () => {
  const limiter = fake().limit({ user: "alice" }, 1_000);
  {
    await using hold = await limiter.hold({ user: "alice" }, { estimate: 400 });
    await hold.renew({ used: 300, estimate: 200 });
    hold.used = 42;
  }
  assert.equal((await limiter.read({ user: "alice" })).statuses[0]?.used, 342);
  assert.deepEqual(
    limiter.commits.map(({ used }) => used),
    [300, 42],
  );
});

test("a renewal without an estimate holds the first one again", async () => {
  const limiter = fake();
  const hold = await limiter.hold({ user: "alice" }, { estimate: 400, id: "job" });
  await hold.renew({ used: 300 });
  await hold.renew({ estimate: 200 });
  await hold.renew({ estimate: undefined });
  assert.deepEqual(
    limiter.calls.map(({ hits }) => hits),
    [400, 400, 200, 400],
  );
});

test("a fake fails until it is told to answer again", async () => {
  const limiter = fake("test", { onFailure: "deny", log: () => {} }).fail("UNAVAILABLE");
  const { allowed, error } = await limiter.decide({ user: "alice" });
  assert.deepEqual([allowed, error?.code], [false, "UNAVAILABLE"]);
  assert.equal((await limiter.commit("token")).error?.code, "UNAVAILABLE");
  assert.equal((await limiter.fail().decide({ user: "alice" })).allowed, true);
  assert.equal(limiter.calls.length, 2);
});
