import type { FastifyRequest, onRequestAsyncHookHandler } from "fastify";
import type { Limiter } from "./client.js";
import { type Describe, decider, type Options } from "./middleware.js";

/** A hook that charges each request, and answers those that are denied: 429, or 503 if `onFailure` has denied. */
export function rateLimit(
  limiter: Limiter,
  describe: Describe<FastifyRequest>,
  options?: Options,
): onRequestAsyncHookHandler {
  const decide = decider(limiter, describe, options);
  return async (request, reply) => {
    const { headers, denial } = await decide(request);
    // Something else has answered meanwhile, such as a timeout.
    if (reply.sent || reply.raw.headersSent) return reply;
    reply.headers(headers);
    return denial && reply.code(denial.status).type(denial.type).send(denial.body);
  };
}
