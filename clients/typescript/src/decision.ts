// What became of a call.
import { CallError, isRefusal } from "./error.js";
import type * as v1 from "./generated/tollkeeper/v1/tollkeeper.js";

/** The longest duration of Protobuf. */
const DURATION_MAX_SECONDS = 315_576_000_000;

/** The state of one descriptor after the call; with `read`, of one limit. */
export interface Status {
  readonly allowed: boolean;
  /** The index of the descriptor in the call. */
  readonly descriptor: number;
  /** The path of the rule, such as `user`; empty if no rule matched. */
  readonly rule: string;
  /** Absent if no limit applies. 0 admits nothing. */
  readonly limit: Limit | undefined;
  readonly remaining: number;
  readonly resetSeconds: number;
  /** Number of hits that count; only with `read`. */
  readonly used: number | undefined;
  /** Number of hits that holds by counter hold beside `used`; only with `read`. */
  readonly held: number | undefined;
}

export interface Limit {
  /** The `name` of the limit in its rule; may be empty. */
  readonly name: string;
  /** The most hits in one window. */
  readonly hits: number;
  /** The window is this unit, `multiplier` times. `UNKNOWN` for a limit on what is in flight. */
  readonly unit: v1.Limit_Unit;
  readonly multiplier: number;
}

export class Decision {
  readonly allowed: boolean;
  /** Whether the service gave no answer, so that `onFailure` decided. */
  readonly failed: boolean;
  /** The most hits in one window; absent if no limit applies. 0 admits nothing. */
  readonly limit: number | undefined;
  /** Number of hits that would still pass; 0 if no limit applies. */
  readonly remaining: number;
  /** Seconds until the window ends; without a fixed window, until the hits fit, or until no hit counts. */
  readonly resetSeconds: number;
  /** Seconds after which a call that the service denied may pass, at least 1; otherwise absent. */
  readonly retryAfterSeconds: number | undefined;
  /** The path of the rule, such as `plan=free|user`; empty if no rule matched. */
  readonly rule: string;
  /** One for each descriptor in their order; empty if there is an error. */
  readonly statuses: readonly Status[];
  /** Why the call failed; or `OUT_OF_RANGE` or `INVALID_ARGUMENT`: the service has refused the call, so it is denied. */
  readonly error: CallError | undefined;
  /** Number of hits that `part` has charged. */
  readonly hits: number;

  /** The methods of `Client` make decisions. */
  constructor(allowed: boolean, answer: v1.Verdict | CallError) {
    const error = answer instanceof CallError ? answer : undefined;
    const statuses = answer instanceof CallError ? [] : answer.statuses.map(statusOf);
    const over = allowed ? [] : statuses.filter((status) => !status.allowed);
    const shown = over.findLast((status) => status.limit) ?? closestOf(statuses);
    this.allowed = allowed;
    this.failed = error !== undefined && !isRefusal(error);
    this.limit = shown?.limit?.hits;
    this.remaining = shown?.remaining ?? 0;
    this.resetSeconds = shown?.resetSeconds ?? 0;
    this.retryAfterSeconds = allowed || error ? undefined : Math.max(1, ...over.map((status) => status.resetSeconds));
    this.rule = shown?.rule ?? "";
    this.statuses = statuses;
    this.error = error;
    this.hits = answer instanceof CallError ? 0 : answer.hits;
  }

  /** For a response over HTTP: the `RateLimit` headers if a limit applies, and `Retry-After` if the service denied the call. */
  headers(): Record<string, string> {
    const headers: Record<string, string> = {};
    if (this.limit !== undefined) {
      headers["RateLimit-Limit"] = String(this.limit);
      headers["RateLimit-Remaining"] = String(this.remaining);
      headers["RateLimit-Reset"] = String(Math.ceil(this.resetSeconds));
    }
    if (this.retryAfterSeconds !== undefined) {
      headers["Retry-After"] = String(Math.ceil(this.retryAfterSeconds));
    }
    return headers;
  }
}

/** The first with a limit and the fewest remaining hits; without any limit, the first. */
function closestOf(statuses: readonly Status[]): Status | undefined {
  const limited = statuses.filter((status) => status.limit);
  return limited.toSorted((one, other) => one.remaining - other.remaining)[0] ?? statuses[0];
}

function statusOf(message: v1.Status): Status {
  const { currentLimit: limit, durationUntilReset: reset } = message;
  return {
    allowed: message.code !== "OVER_LIMIT",
    descriptor: message.descriptorIndex,
    rule: message.rule,
    remaining: message.limitRemaining,
    resetSeconds: reset ? Math.min(Math.max(0, reset.seconds + reset.nanos / 1e9), DURATION_MAX_SECONDS) : 0,
    limit: limit
      ? { name: limit.name, hits: limit.requestsPerUnit, unit: limit.unit, multiplier: limit.unitMultiplier }
      : undefined,
    used: message.used,
    held: message.held,
  };
}
