import { createServer } from "node:http";
import { Client } from "tollkeeper";

const limiter = new Client("localhost:8081", "example");

createServer(async (request, response) => {
  const decision = await limiter.decide({ user: request.headers["x-user"]?.toString() ?? "" });
  if (!decision.allowed) return response.writeHead(429, decision.headers()).end();
  return response.end("Hello\n");
}).listen(3000);
