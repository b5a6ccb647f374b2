import type { Request, RequestHandler } from "express";
import type { Client } from "./client.js";
import { type Describe, decide } from "./middleware.js";

/** Charges each request, and answers those that are denied: 429, or 503 if `onFailure` has denied. */
export function rateLimit(client: Client, describe: Describe<Request>): RequestHandler {
  return async (request, response, next) => {
    const { headers, refusal } = await decide(client, describe, request);
    response.set(headers);
    if (refusal) response.status(refusal.status).type("text").send(refusal.text);
    else next();
  };
}
