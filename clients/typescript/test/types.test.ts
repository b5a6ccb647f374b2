// What has to compile, without `exactOptionalPropertyTypes`, which few projects set.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Client, Descriptors, Limiter } from "tollkeeper";
import { rateLimit } from "tollkeeper/express";
import { fake } from "tollkeeper/testing";

test("descriptors of one request may have different keys", () => {
  const limiter = fake();
  const made = [
    rateLimit(limiter, ({ ip, body }) => [{ login_user: String(body.user) }, { login_address: ip ?? "" }]),
    rateLimit(limiter, async ({ path }) => (path === "/" ? undefined : [{ path }, [["user", "alice"]]])),
    rateLimit(limiter, ({ path }) => [{ entries: { path }, limit: { hits: 1, unit: "DAY" } }, { user: "alice" }]),
    // @ts-expect-error an identity that may be absent
    rateLimit(limiter, (request) => ({ user: request.get("x-user") })),
  ];
  assert.equal(made.length, 4);
});

test("a fake and a view are clients", async () => {
  const app = (client: Client, view: Limiter, descriptors: Descriptors) =>
    Promise.all([client.decide(descriptors), view.decide(descriptors)]);
  const client = fake();
  assert.equal((await app(client, client.with({ timeoutMs: 1 }), { user: "alice" })).length, 2);
});
