import Fastify from "fastify";
import { Client } from "tollkeeper";
import { rateLimit } from "tollkeeper/fastify";

const limiter = new Client("localhost:8081", "example");
const app = Fastify();
app.addHook(
  "onRequest",
  rateLimit(limiter, (request) => ({ user: request.headers["x-user"]?.toString() ?? "" })),
);
app.get("/", async () => "Hello\n");
await app.listen({ port: 3000 });
