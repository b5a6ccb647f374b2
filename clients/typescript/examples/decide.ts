import { createServer } from "node:http";
import { Client } from "tollkeeper";

const limiter = new Client("localhost:8081", "example");
// Stands for your authentication: a caller cannot choose who it is.
const users = new Map([["Bearer key-of-alice", "alice"]]);

createServer(async (request, response) => {
  const user = users.get(request.headers.authorization ?? "");
  if (!user) return response.writeHead(401).end();
  const decision = await limiter.decide({ user });
  if (!decision.allowed) return response.writeHead(decision.failed ? 503 : 429, decision.headers()).end();
  return response.end("Hello\n");
}).listen(3000);
