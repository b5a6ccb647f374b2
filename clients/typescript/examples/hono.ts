import { serve } from "@hono/node-server";
import { Hono } from "hono";
import { Client } from "tollkeeper";
import { rateLimit } from "tollkeeper/hono";

const limiter = new Client("localhost:8081", "example");
const app = new Hono();
app.use(rateLimit(limiter, (context) => ({ user: context.req.header("x-user") ?? "" })));
app.get("/", (context) => context.text("Hello\n"));
serve({ fetch: app.fetch, port: 3000 });
