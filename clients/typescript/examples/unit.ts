import assert from "node:assert/strict";
import { test } from "node:test";
import type { Limiter } from "tollkeeper";
import { fake } from "tollkeeper/testing";

async function greet(limiter: Limiter, user: string): Promise<string> {
  const { allowed } = await limiter.decide({ user });
  return allowed ? `Hello ${user}` : "Please wait";
}

test("bob is greeted once", async () => {
  const limiter = fake().limit({ user: "bob" }, 1);
  assert.equal(await greet(limiter, "bob"), "Hello bob");
  assert.equal(await greet(limiter, "bob"), "Please wait");
  assert.equal(limiter.calls.length, 2);
});
