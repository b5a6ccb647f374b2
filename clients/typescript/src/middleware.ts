// What the middlewares of all frameworks share.
import type { Client } from "./client.js";
import type { Descriptors } from "./descriptor.js";

/** What to limit for a request; undefined lets it pass. */
export type Describe<Request> = (request: Request) => Descriptors | undefined | Promise<Descriptors | undefined>;

/** Headers for the response, and the response itself if the request may not pass. */
export interface Answer {
  readonly headers: Readonly<Record<string, string>>;
  readonly refusal?: { readonly status: 429 | 503; readonly text: string };
}

const DENIED = { status: 429, text: "too many requests\n" } as const;
/** `onFailure` has denied the request. */
const FAILED = { status: 503, text: "rate limits are unavailable\n" } as const;

export async function decide<Request>(client: Client, describe: Describe<Request>, request: Request): Promise<Answer> {
  const descriptors = await describe(request);
  if (descriptors === undefined) return { headers: {} };
  const decision = await client.decide(descriptors);
  const headers = decision.headers();
  return decision.allowed ? { headers } : { headers, refusal: decision.failed ? FAILED : DENIED };
}
