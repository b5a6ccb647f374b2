import type { Request, RequestHandler } from "express";
import type { Limiter } from "./client.js";
import { type Describe, decider, type Options } from "./middleware.js";

/** Charges each request, and answers those that are denied: 429, or 503 if `onFailure` has denied. */
export function rateLimit(limiter: Limiter, describe: Describe<Request>, options?: Options): RequestHandler {
  const decide = decider(limiter, describe, options);
  return (request, response, next) => {
    const answered = decide(request).then(({ headers, denial }) => {
      // Something else has answered meanwhile, such as a timeout.
      if (response.headersSent) return;
      response.set(headers);
      if (denial) response.status(denial.status).type(denial.type).send(denial.body);
      else next();
    });
    // Express 4 does not look at promises.
    answered.catch((thrown) => next(errorOf(thrown)));
  };
}

/** `next` lets the request pass with some values that can be thrown, such as undefined and "route". */
function errorOf(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error("what was thrown is no Error", { cause: thrown });
}
