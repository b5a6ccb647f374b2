import { setTimeout as pause } from "node:timers/promises";
import { Channel, type OnCall, type Tls } from "./channel.js";
import { Decision } from "./decision.js";
import {
  type Call,
  checkHits,
  checkKinds,
  type Descriptor,
  type Descriptors,
  encodeCall,
  listOf,
} from "./descriptor.js";
import { CallError } from "./error.js";
import { type Commit, Hold, type Usage } from "./hold.js";
import type { VerdictMessage } from "./wire.js";

export interface ClientOptions {
  /** How long a request may take, in milliseconds; 50 by default. */
  readonly timeoutMs?: number;
  /** The decision about a call that gets no answer: `allow` (the default), `deny`, or what the function returns. */
  readonly onFailure?: "allow" | "deny" | ((error: CallError, descriptors: readonly Descriptor[]) => boolean);
  /** Encrypts connections. `{}` trusts the CAs that Node trusts. */
  readonly tls?: Tls;
  /** Is called after each request, for metrics and logs. An error that it throws becomes a warning of the process. */
  readonly onCall?: OnCall;
}

/** The decision, and the token of its hold; empty if nothing was held. */
interface Answer {
  readonly decision: Decision;
  readonly token: string;
}

const TIMEOUT_MS = 50;
const CALLS_MAX = 1_000;
const COMMIT_ATTEMPTS = 3;
const COMMIT_PAUSE_MS = 100;
/** Codes of commits that would fail again. */
const PERMANENT = ["INVALID_ARGUMENT", "OUT_OF_RANGE", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"];

/** Decides calls. Make one for the process: all calls share its connections. */
export class Client {
  readonly #channel: Channel;
  readonly #domain: string;
  readonly #onFailure: NonNullable<ClientOptions["onFailure"]>;

  /**
   * @param target the address of the service, such as `localhost:8081`; calls go to all addresses of a name
   * @param domain the domain of the rules
   */
  constructor(target: string, domain: string, options: ClientOptions = {}) {
    const { timeoutMs = TIMEOUT_MS, onFailure = "allow", tls, onCall } = options;
    if (!target) throw new RangeError("target: must not be empty");
    if (!domain) throw new RangeError("domain: must not be empty");
    if (!(timeoutMs > 0)) throw new RangeError(`timeoutMs: must be above 0, not ${timeoutMs}`);
    if (typeof onFailure !== "function" && onFailure !== "allow" && onFailure !== "deny") {
      throw new TypeError("onFailure: must be one of: allow, deny, a function");
    }
    this.#channel = new Channel(target, { timeoutMs, tls, onCall });
    this.#domain = domain;
    this.#onFailure = onFailure;
  }

  /** Charges the hits if all of them fit, or nothing. It rejects only where an argument is not valid, like all methods. */
  async decide(descriptors: Descriptors, hits = 1): Promise<Decision> {
    return this.decideCall({ descriptors, hits });
  }

  /** Charges nothing, and decides as for one hit. */
  async check(descriptors: Descriptors): Promise<Decision> {
    return this.decideCall({ descriptors, mode: "check" });
  }

  /** Charges nothing and denies nothing: there is a status for each limit, which shows what is used. */
  async read(descriptors: Descriptors): Promise<Decision> {
    return this.decideCall({ descriptors, mode: "read" });
  }

  /** Charges the hits also beyond the limit, for work that is done. The decision shows whether they fit. */
  async debit(descriptors: Descriptors, hits = 1): Promise<Decision> {
    return this.decideCall({ descriptors, hits, mode: "debit" });
  }

  /** Charges as many of the hits as fit, which is `hits` of the decision. Denied if none fits. */
  async part(descriptors: Descriptors, hits = 1): Promise<Decision> {
    return this.decideCall({ descriptors, hits, mode: "part" });
  }

  /** Gives hits back, such as for work that was not done. */
  async refund(descriptors: Descriptors, hits = 1): Promise<Decision> {
    return this.decideCall({ descriptors, hits, mode: "refund" });
  }

  /** Decides one call. */
  async decideCall(call: Call): Promise<Decision> {
    const [{ decision }] = await this.#request([call], () => "");
    return decision;
  }

  /** Decides up to 1,000 calls by one request. The decisions are in the order of the calls, and each call fails alone. */
  async decideAll(calls: readonly Call[]): Promise<Decision[]> {
    if (calls.length > CALLS_MAX) throw new RangeError(`calls: ${calls.length} exceeds ${CALLS_MAX}`);
    const answers = await this.#request(calls, (index) => `calls[${index}].`);
    return answers.map(({ decision }) => decision);
  }

  /**
   * Holds hits for work that is about to begin. A commit replaces them by what the work has used.
   *
   * @param estimate number of hits to hold; by default the estimate of the rule
   * @param hitsByKind the same by kind, such as `{ input: 900, output: 100 }`, for limits with `weights`
   * @param id names the hold, which is taken once, also if it is repeated within 60 s
   */
  async hold(
    descriptors: Descriptors,
    estimate?: number,
    hitsByKind?: Readonly<Record<string, number>>,
    id?: string,
  ): Promise<Hold> {
    checkHits(estimate, "estimate");
    const [{ decision, token }] = await this.#request([{ descriptors, hits: estimate, hitsByKind, id }], () => "");
    return new Hold(this, decision, token);
  }

  /**
   * Commits the hold that has this token, also from another process than its own. It makes up to three attempts, since only
   * the first commit of a hold counts, and does not reject if they fail.
   */
  async commit(token: string, usage: Usage = {}): Promise<Commit> {
    checkHits(usage.used, "used");
    checkKinds(usage.usedByKind, "usedByKind");
    for (let attempt = 1; ; attempt++) {
      const [result] = await this.#channel.commit(this.#domain, [{ hold: token, ...usage }]);
      if (!(result instanceof CallError)) return { charges: result.charges, error: undefined };
      if (attempt === COMMIT_ATTEMPTS || PERMANENT.includes(result.code)) return { charges: [], error: result };
      await pause(COMMIT_PAUSE_MS);
    }
  }

  /** Closes the connections when the calls in progress have ended. */
  close(): void {
    this.#channel.close();
  }

  async #request(calls: readonly Call[], path: (index: number) => string): Promise<Answer[]> {
    const messages = calls.map((call, index) => encodeCall(call, path(index)));
    if (messages.length === 0) return [];
    const verdicts = await this.#channel.decide(this.#domain, messages);
    return verdicts.map((verdict, index) => this.#answer(verdict, calls[index].descriptors));
  }

  #answer(verdict: VerdictMessage | CallError, descriptors: Descriptors): Answer {
    if (!(verdict instanceof CallError)) {
      return { decision: new Decision(verdict.code === "OK", verdict), token: verdict.hold };
    }
    const onFailure = this.#onFailure;
    const allowed = typeof onFailure === "function" ? onFailure(verdict, listOf(descriptors)) : onFailure === "allow";
    return { decision: new Decision(allowed, verdict), token: "" };
  }
}
