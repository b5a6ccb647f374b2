import type { FastifyRequest, onRequestAsyncHookHandler } from "fastify";
import type { Client } from "./client.js";
import { type Describe, decide } from "./middleware.js";

/** A hook that charges each request, and answers those that are denied: 429, or 503 if `onFailure` has denied. */
export function rateLimit(client: Client, describe: Describe<FastifyRequest>): onRequestAsyncHookHandler {
  return async (request, reply) => {
    const { headers, refusal } = await decide(client, describe, request);
    reply.headers(headers);
    return refusal && reply.code(refusal.status).type("text/plain").send(refusal.text);
  };
}
