import type { Context, MiddlewareHandler } from "hono";
import type { Limiter } from "./client.js";
import { type Describe, decider, type Options } from "./middleware.js";

/** Charges each request, and answers those that are denied: 429, or 503 if `onFailure` has denied. */
export function rateLimit(limiter: Limiter, describe: Describe<Context>, options?: Options): MiddlewareHandler {
  const decide = decider(limiter, describe, options);
  return async (context, next) => {
    const { headers, denial } = await decide(context);
    if (!denial) await next();
    // After the handler, which may return a response with headers of its own.
    for (const [name, value] of Object.entries(headers)) context.header(name, value);
    return denial && context.body(denial.body, denial.status, { "content-type": denial.type });
  };
}
