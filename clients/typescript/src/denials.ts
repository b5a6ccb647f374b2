// Denials that clients remember, to give them again without a request.
import { Decision } from "./decision.js";
import { entryBytes } from "./descriptor.js";
import type * as v1 from "./generated/tollkeeper/v1/tollkeeper.js";

const DENIALS_MAX = 10_000;
/** Callers may send long values. This bounds the time and the memory that they take, by the four characters of JSON for a byte. */
const ENTRY_BYTES_MAX = 1_024;
const REQUEST_LENGTH_MAX = 4 * ENTRY_BYTES_MAX;

/** What the service has denied to the clients of one connection, by their requests, and when. */
export class Denials {
  readonly #denials = new Map<string, { verdict: v1.Verdict; at: number; retryAfterMs: number }>();

  add(request: string, verdict: v1.Verdict): void {
    if (request.length > REQUEST_LENGTH_MAX) return;
    const { retryAfterSeconds = 0 } = new Decision(false, verdict);
    this.#denials.set(request, { verdict, at: performance.now(), retryAfterMs: retryAfterSeconds * 1_000 });
    if (this.#denials.size > DENIALS_MAX) this.#denials.clear();
  }

  /** The verdict on an equal request in the last milliseconds, if its `retryAfterSeconds` are not over. */
  find(request: string, ms: number): v1.Verdict | undefined {
    const denial = this.#denials.get(request);
    if (!denial) return undefined;
    const passedMs = performance.now() - denial.at;
    if (passedMs >= Math.min(ms, denial.retryAfterMs)) return undefined;
    const statuses = denial.verdict.statuses.map(({ durationUntilReset: reset, ...status }) => {
      const seconds = reset ? reset.seconds + reset.nanos / 1e9 - passedMs / 1_000 : 0;
      return { ...status, durationUntilReset: { seconds: Math.max(0, seconds), nanos: 0 } };
    });
    return { ...denial.verdict, statuses };
  }
}

/** What is equal for equal requests; empty for a long one. */
export function keyOf(request: v1.DecideRequest): string {
  if (entryBytes(request.calls) > ENTRY_BYTES_MAX) return "";
  return JSON.stringify(request, (_, value) => (value instanceof Uint8Array ? value.join() : value));
}
