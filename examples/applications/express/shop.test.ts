// The shop with a fake in place of the service.
import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, test } from "node:test";
import { type FakeClient, fake } from "tollkeeper/testing";
import { shop } from "./shop.ts";

let limiter: FakeClient;
let server: ReturnType<ReturnType<typeof shop>["listen"]>;

beforeEach(async () => {
  limiter = fake("shop");
  server = shop(limiter).listen(0, "127.0.0.1");
  await once(server, "listening");
});

afterEach(() => server.close());

async function status(path: string, init: RequestInit): Promise<number> {
  return (await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}${path}`, init)).status;
}

const login = (password: string, user = "alice") =>
  status("/login", { method: "POST", body: new URLSearchParams({ user, password }) });
const reports = (authorization: string) => status("/reports", { headers: { authorization } });

test("the sixth guess is denied, and so is the right password then", async () => {
  limiter.limit({ route: "/login", user: "alice" }, 5);
  for (const expected of [401, 401, 401, 401, 401, 429]) assert.equal(await login("guess"), expected);
  assert.equal(await login("correct-horse"), 429);
});

test("without an answer, logins are denied and reports pass", async () => {
  limiter.fail("UNAVAILABLE");
  assert.equal(await login("correct-horse"), 503);
  assert.equal(await reports("Bearer key-of-alice"), 200);
});

test("strangers and endless names are not decided", async () => {
  assert.equal(await reports("Bearer alice"), 401);
  assert.equal(await login("guess", "é".repeat(51)), 400);
  assert.deepEqual(limiter.calls, []);
  assert.equal(await login("correct-horse"), 200);
  assert.equal(await reports("bearer key-of-alice"), 200);
});

test("a body that cannot be read is no error in the log", async (context) => {
  const log = context.mock.method(console, "error", () => {});
  const type = "application/x-www-form-urlencoded; charset=none";
  assert.equal(await status("/login", { method: "POST", headers: { "content-type": type }, body: "user=alice" }), 415);
  assert.equal(log.mock.callCount(), 0);
});
