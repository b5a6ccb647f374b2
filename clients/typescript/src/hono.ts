import type { Context, MiddlewareHandler } from "hono";
import type { Client } from "./client.js";
import { type Describe, decide } from "./middleware.js";

/** Charges each request, and answers those that are denied: 429, or 503 if `onFailure` has denied. */
export function rateLimit(client: Client, describe: Describe<Context>): MiddlewareHandler {
  return async (context, next) => {
    const { headers, refusal } = await decide(client, describe, context);
    if (!refusal) await next();
    // After the handler, which may return a response with headers of its own.
    for (const [name, value] of Object.entries(headers)) context.header(name, value);
    return refusal && context.text(refusal.text, refusal.status);
  };
}
