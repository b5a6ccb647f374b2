import assert from "node:assert/strict";
import { once } from "node:events";
import { Agent, request } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { after, test } from "node:test";
import { createAdaptorServer } from "@hono/node-server";
import express from "express";
import express4 from "express4";
import Fastify from "fastify";
import { Hono } from "hono";
import type { Descriptors, Limiter } from "tollkeeper";
import { rateLimit as expressLimit } from "tollkeeper/express";
import { rateLimit as fastifyLimit } from "tollkeeper/fastify";
import { rateLimit as honoLimit } from "tollkeeper/hono";
import { fake } from "tollkeeper/testing";
import { connect, goneAddress, random, serviceTest, variable } from "./services.js";

/** What to limit for a request with this header `x-user`. */
const describe = (user: string | undefined): Descriptors | undefined => {
  if (user === "unknown") throw new Error("a mistake in the function");
  if (user?.startsWith("throws ")) throw JSON.parse(user.slice(7))[0];
  if (user === "mistake") return { three: undefined as unknown as string };
  return user === undefined ? undefined : { three: user };
};

const denial = ({ failed }: { failed: boolean }) => ({ type: "application/json", body: JSON.stringify({ failed }) });

type Options = Parameters<typeof honoLimit>[2];

/** Starts a server that is limited by the client, and returns its URL. */
const frameworks: Record<string, (limiter: Limiter, options?: Options) => Promise<string>> = {
  "Express 5": (limiter, options) => startExpress(express(), limiter, options),
  "Express 4": (limiter, options) => startExpress(express4(), limiter, options),
  Fastify: async (limiter, options) => {
    const app = Fastify();
    app.addHook(
      "onRequest",
      fastifyLimit(limiter, (request) => describe(request.headers["x-user"]?.toString()), options),
    );
    app.get("/", async () => "Hello");
    after(() => app.close());
    return app.listen({ port: 0, host: "127.0.0.1" });
  },
  Hono: async (limiter, options) => {
    const app = new Hono();
    app.use(honoLimit(limiter, (context) => describe(context.req.header("x-user")), options));
    // A response of its own, whose headers cannot be changed.
    app.get("/", () => fetch("data:text/plain,Hello"));
    app.onError((error, context) => context.text(error.message, 500));
    const server = createAdaptorServer(app);
    after(() => server.close());
    await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  },
};

async function startExpress(app: express.Express, limiter: Limiter, options?: Options): Promise<string> {
  app.set("env", "test");
  app.use(expressLimit(limiter, (request) => describe(request.get("x-user")), options));
  app.get("/", (_request, response) => {
    response.send("Hello");
  });
  const server = app.listen(0, "127.0.0.1");
  after(() => server.close());
  await new Promise((listening) => server.once("listening", listening));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

interface Answer {
  status: number;
  body: string;
  /** Limit, remaining hits, and whether there is a reset and a time to retry after. */
  headers: [limit: string | null, remaining: string | null, reset: boolean, retryAfter: boolean];
}

async function get(url: string, user?: string): Promise<Answer> {
  const response = await fetch(url, { headers: user === undefined ? {} : { "x-user": user } });
  const header = (name: string) => response.headers.get(name);
  const seconds = (name: string) => Number(header(name) ?? 0) >= 1;
  return {
    status: response.status,
    body: await response.text(),
    headers: [
      header("RateLimit-Limit"),
      header("RateLimit-Remaining"),
      seconds("RateLimit-Reset"),
      seconds("Retry-After"),
    ],
  };
}

for (const [name, start] of Object.entries(frameworks)) {
  serviceTest(`${name} answers 429 to a denied request, with headers`, async () => {
    const url = await start(connect(variable("TOLLKEEPER_ADDR"), { onFailure: "deny" }));
    const user = random();
    for (const remaining of ["2", "1", "0"]) {
      assert.deepEqual(await get(url, user), { status: 200, body: "Hello", headers: ["3", remaining, true, false] });
    }
    const denied = { status: 429, body: "Too Many Requests\n", headers: ["3", "0", true, true] };
    assert.deepEqual(await get(url, user), denied);
  });

  test(`${name} passes a request without descriptors`, async () => {
    const url = await start(connect(await goneAddress(), { onFailure: "deny" }));
    assert.deepEqual(await get(url), { status: 200, body: "Hello", headers: [null, null, false, false] });
  });

  test(`${name} answers 503 where onFailure denies, and passes where it allows`, async () => {
    const gone = await goneAddress();
    const none = [null, null, false, false];
    const denying = await start(connect(gone, { onFailure: "deny" }));
    assert.deepEqual(await get(denying, "alice"), {
      status: 503,
      body: "Service Unavailable\n",
      headers: none,
    });
    const allowing = await start(connect(gone, { onFailure: "allow" }));
    assert.deepEqual(await get(allowing, "alice"), { status: 200, body: "Hello", headers: none });
  });

  test(`${name} answers 429 to a request that the service refuses as too large`, async () => {
    const client = fake();
    client.fail("OUT_OF_RANGE");
    const denied = { status: 429, body: "Too Many Requests\n", headers: [null, null, false, false] };
    assert.deepEqual(await get(await start(client), "alice"), denied);
  });

  test(`${name} answers a denied request with the body of the application`, async () => {
    const url = await start(fake().deny({ three: "alice" }), { denial });
    const response = await fetch(url, { headers: { "x-user": "alice" } });
    const type = response.headers.get("content-type")?.split(";")[0];
    assert.deepEqual([response.status, type, await response.json()], [429, "application/json", { failed: false }]);
  });

  test(`${name} answers 500 to a request whose descriptors cannot be made`, async () => {
    const { status, body } = await get(await start(fake()), "unknown");
    assert.equal(status, 500);
    assert.match(body, /a mistake in the function/);
  });

  test(`${name} answers 500 whatever the function throws`, async () => {
    const url = await start(fake());
    for (const thrown of ["[]", "[null]", "[0]", '[""]', '["route"]', '["router"]']) {
      assert.equal((await get(url, `throws ${thrown}`)).status, 500, thrown);
    }
  });

  test(`${name} answers 500 to a mistake of the caller, which only one line a minute explains`, async (context) => {
    const written = context.mock.method(console, "error", () => {});
    const lines: string[] = [];
    const url = await start(fake("test", { log: (line) => lines.push(line) }));
    const internal = { status: 500, body: "Internal Server Error\n", headers: [null, null, false, false] };
    for (let request = 0; request < 2; request++) assert.deepEqual(await get(url, "mistake"), internal);
    assert.equal(lines.length, 1);
    assert.match(lines.join(), /answered by 500: TypeError: descriptors\[0\]\.entries\[0\]\.value: must be a string/);
    assert.equal(written.mock.callCount(), 0);
  });
}

for (const [name, app] of [
  ["Express 5", express()],
  ["Express 4", express4()],
] as const) {
  test(`${name} leaves a response alone that began before its decision`, async () => {
    app.use((_request, response, next) => {
      next();
      response.send("early");
    });
    const agent = new Agent({ keepAlive: true });
    after(() => agent.destroy());
    const url = await startExpress(app, fake().deny({ three: "bob" }));
    const reused = [];
    for (const user of ["alice", "bob", "alice"]) {
      const sent = request(url, { agent, headers: { "x-user": user } }).end();
      const [response] = await once(sent, "response");
      assert.deepEqual([response.statusCode, await text(response)], [200, "early"]);
      reused.push(sent.reusedSocket);
    }
    assert.deepEqual(reused, [false, true, true]);
  });
}

for (const [name, framework] of [
  ["Express 5", express],
  ["Express 4", express4],
] as const) {
  test(`${name} limits a route by its name in each router`, async () => {
    const limiter = fake("test", { requireLimit: true, log: () => {} }).limit({ route: "reports" }, 2);
    const router = framework.Router();
    router.get(
      "/reports/:id",
      expressLimit(limiter, () => ({ route: "reports" })),
      (_request, response) => {
        response.send("Hello");
      },
    );
    router.get(
      "/misspelled",
      expressLimit(limiter, () => ({ route: "report" })),
    );
    const url = await startExpress(framework().use(["/api", "/of/:customer"], router), limiter);
    const statuses = [];
    for (const path of ["api/reports/1", "of/a/reports/2", "of/b/reports/3", "api/misspelled"]) {
      statuses.push((await get(`${url}/${path}`)).status);
    }
    assert.deepEqual(statuses, [200, 200, 429, 500]);
  });
}

test("Fastify leaves a response alone that began before its decision", async () => {
  const lines: string[] = [];
  const app = Fastify({ logger: { level: "warn", stream: { write: (line: string) => lines.push(line) } } });
  after(() => app.close());
  app.addHook("onRequest", (_request, reply, done) => {
    done();
    reply.send("early");
  });
  app.addHook(
    "onRequest",
    fastifyLimit(fake().deny({ three: "alice" }), () => ({ three: "alice" })),
  );
  app.get("/", async () => "Hello");
  const { statusCode, body } = await app.inject("/");
  assert.deepEqual([statusCode, body, lines], [200, "early", []]);
});
