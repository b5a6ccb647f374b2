// What the middlewares of all frameworks share.
import type { Limiter } from "./client.js";
import type { Decision } from "./decision.js";
import { checkOptions, type Descriptors } from "./descriptor.js";

/** What to limit for a request; undefined lets it pass. */
export type Describe<Request> = (request: Request) => Descriptors | undefined | Promise<Descriptors | undefined>;

export interface Options {
  /** The body of a response to a denied request, and its type; by default a line of plain text. */
  readonly denial?: (decision: Decision) => Denial | Promise<Denial>;
}

export interface Denial {
  readonly type: string;
  readonly body: string;
}

const plain = (text: string): Denial => ({ type: "text/plain; charset=utf-8", body: `${text}\n` });
const denialOf = ({ failed }: Decision): Denial => plain(failed ? "Service Unavailable" : "Too Many Requests");

/** Headers for the response, and the response itself if the request may not pass. */
export interface Reply {
  readonly headers: Record<string, string>;
  readonly denial?: Denial & { readonly status: 429 | 500 | 503 };
}

/** Returns what decides each request. */
export function decider<Request>(
  limiter: Limiter,
  describe: Describe<Request>,
  options: Options = {},
): (request: Request) => Promise<Reply> {
  checkOptions(options, ["denial"]);
  const { denial = denialOf } = options;
  return async (request) => {
    const descriptors = await describe(request);
    if (descriptors === undefined) return { headers: {} };
    // Frameworks would log each error, and show its text to the end user.
    const decision = await limiter.decide(descriptors).catch((error) => limiter.logMistake(error));
    if (!decision) return { headers: {}, denial: { ...plain("Internal Server Error"), status: 500 } };
    const headers = decision.headers();
    if (decision.allowed) return { headers };
    return { headers, denial: { ...(await denial(decision)), status: decision.failed ? 503 : 429 } };
  };
}
