import { Client } from "tollkeeper/fetch";

const limiter = new Client("http://localhost:8080", "example");
const users = new Map([["Bearer key-of-alice", "alice"]]);

export default {
  async fetch(request: Request): Promise<Response> {
    const user = users.get(request.headers.get("authorization") ?? "");
    if (!user) return new Response(null, { status: 401 });
    const decision = await limiter.decide({ user });
    const headers = decision.headers();
    if (!decision.allowed) return new Response(null, { status: decision.failed ? 503 : 429, headers });
    return new Response("Hello\n", { headers });
  },
};
