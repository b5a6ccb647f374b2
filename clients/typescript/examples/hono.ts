import { serve } from "@hono/node-server";
import { Hono } from "hono";
import { Client } from "tollkeeper";
import { rateLimit } from "tollkeeper/hono";

const limiter = new Client("localhost:8081", "example");
const users = new Map([["Bearer key-of-alice", "alice"]]);
const app = new Hono<{ Variables: { user: string } }>();
app.use(async (context, next) => {
  const user = users.get(context.req.header("authorization") ?? "");
  if (!user) return context.body(null, 401);
  context.set("user", user);
  return next();
});
app.use(rateLimit(limiter, (context) => ({ user: context.get("user") })));
app.get("/", (context) => context.text("Hello\n"));
serve({ fetch: app.fetch, port: 3000 });
