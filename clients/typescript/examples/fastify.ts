import Fastify from "fastify";
import { Client } from "tollkeeper";
import { rateLimit } from "tollkeeper/fastify";

declare module "fastify" {
  interface FastifyRequest {
    user: string;
  }
}

const limiter = new Client("localhost:8081", "example");
const users = new Map([["Bearer key-of-alice", "alice"]]);
const app = Fastify();
app.decorateRequest("user", "");
app.addHook("onRequest", async (request, reply) => {
  const user = users.get(request.headers.authorization ?? "");
  if (!user) return reply.code(401).send();
  request.user = user;
});
app.addHook(
  "onRequest",
  rateLimit(limiter, (request) => ({ user: request.user })),
);
app.get("/", async () => "Hello\n");
await app.listen({ port: 3000 });
