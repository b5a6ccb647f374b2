// Hits that are held for work under way, until a commit replaces them by what was used.
import type { Decision } from "./decision.js";
import { checkHits, checkKinds, checkOptions } from "./descriptor.js";
import type { CallError } from "./error.js";
import type * as v1 from "./generated/tollkeeper/v1/tollkeeper.js";

type ByKind = Readonly<Record<string, number>>;

/** What work has used, for a commit. */
export interface Usage {
  /** Number of hits that were used; 0 releases the hold. If absent, all that was held counts. */
  readonly used?: number | undefined;
  /** The same by kind, such as `{ input: 900, output: 42 }`, for limits with `weights`. */
  readonly usedByKind?: ByKind | undefined;
  /** How the work ended, such as `503 UF`, which the service compares with `unused_on` of the rule. */
  readonly end?: string | undefined;
}

/** The usage of the hold that has this token. */
export type Used = Usage & { readonly hold: string };

/** What to hold. */
export interface Estimate {
  /** Number of hits to hold; by default the estimate of the rule. */
  readonly estimate?: number | undefined;
  /** The same by kind, such as `{ input: 900, output: 100 }`, for limits with `weights`. */
  readonly hitsByKind?: ByKind | undefined;
}

/** What became of a commit. */
export interface Commit {
  /** One for each counter of the hold. */
  readonly charges: readonly CommittedCharge[];
  /** Why nothing was committed; absent if the service answered. */
  readonly error: CallError | undefined;
}

/** The end of one counter's part. */
export type CommittedCharge = Readonly<v1.CommittedCharge>;

/** A decision, and the token of what it holds; empty if nothing is held. */
export interface Held {
  readonly decision: Decision;
  readonly token: string;
  /** Whether a renewal has committed the old hold. */
  readonly isCommitted?: boolean;
  /** That the call meets no limit, if one is required. */
  readonly mistake?: RangeError | undefined;
}

/** What a hold needs of its client. */
export interface HoldClient {
  commit(token: string, usage: Usage): Promise<Commit>;
  take(estimate: Estimate): Promise<Held>;
  renew(old: Used, estimate: Estimate): Promise<Held>;
}

/**
 * A hold, or a call that got none. `await using` commits it at the end of its scope, however the scope is left;
 * without `await using`, call `commit` in `finally`.
 */
export class Hold {
  /** How the work ended, such as `503 UF`, which the service compares with `unused_on` of the rule. */
  end: string | undefined;
  readonly #client: HoldClient;
  readonly #estimate: Estimate;
  #held: Held;
  #used: number | undefined;
  #usedByKind: ByKind | undefined;
  /** What was used before a renewal that got no answer. */
  #before: Usage = {};
  #isCommitted = false;

  /** `Client.hold` makes holds. */
  constructor(client: HoldClient, { estimate, hitsByKind }: Estimate, held: Held) {
    this.#client = client;
    this.#estimate = { estimate, hitsByKind };
    this.#held = held;
  }

  /** Whether the work may begin; after `renew`, whether it may go on. */
  get allowed(): boolean {
    return this.decision.allowed;
  }

  get decision(): Decision {
    return this.#held.decision;
  }

  /** Names the hold for `Client.commit`; empty if nothing is held. */
  get token(): string {
    return this.#held.token;
  }

  /** Number of hits that the work has used so far, since the last renewal. While it is not set, all that was held counts. */
  get used(): number | undefined {
    return this.#used;
  }

  set used(hits: number | undefined) {
    checkHits(hits, "used");
    this.#used = hits;
  }

  /** The same by kind, such as `{ input: 900, output: 42 }`, for limits with `weights`. */
  get usedByKind(): ByKind | undefined {
    return this.#usedByKind;
  }

  set usedByKind(hitsByKind: ByKind | undefined) {
    checkKinds(hitsByKind, "usedByKind");
    this.#usedByKind = hitsByKind && { ...hitsByKind };
  }

  /**
   * Replaces what was held by what was used, and never rejects. It may be repeated; only the first counts. If it failed,
   * the end of the scope repeats it.
   */
  async commit(): Promise<Commit> {
    const { token } = this;
    const result = token === "" ? NOTHING : await this.#client.commit(token, this.#usage());
    // A renewal may have taken another hold meanwhile.
    if (token === this.token) this.#isCommitted = result.error === undefined;
    return result;
  }

  /** Gives back all that was held, and never rejects. */
  async release(): Promise<Commit> {
    this.#before = {};
    this.#used = 0;
    this.#usedByKind = undefined;
    return this.commit();
  }

  /**
   * Commits what was used so far, and holds an estimate of what comes next, in one step; without one, the first estimate.
   * `used` begins again at the renewal. The work must end if the decision is not allowed.
   */
  async renew(options: Omit<Usage, "end"> & Estimate = {}): Promise<Decision> {
    checkOptions(options, ["used", "usedByKind", "estimate", "hitsByKind"]);
    const { used = this.#used, usedByKind = this.#usedByKind, ...next } = options;
    const estimate = next.estimate === undefined && next.hitsByKind === undefined ? this.#estimate : next;
    this.used = used;
    this.usedByKind = usedByKind;
    const usage = this.#usage();
    if (this.token === "") {
      this.#held = await this.#client.take(estimate);
    } else {
      const held = await this.#client.renew({ hold: this.token, ...usage }, estimate);
      // The old hold may still be open. At the end, it is committed with all that was used of it.
      const isOld = !held.isCommitted;
      this.#before = isOld ? usage : {};
      this.#held = isOld ? { ...held, token: this.token } : held;
    }
    this.#used = undefined;
    this.#usedByKind = undefined;
    this.#isCommitted = false;
    if (this.#held.mistake) throw this.#held.mistake;
    return this.decision;
  }

  /** Commits, unless that was done. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isCommitted) await this.commit();
  }

  #usage(): Usage {
    const { used, usedByKind } = this.#before;
    return { used: sum(used, this.#used), usedByKind: sumByKind(usedByKind, this.#usedByKind), end: this.end };
  }
}

const NOTHING: Commit = { charges: [], error: undefined };

function sum(before: number | undefined, since: number | undefined): number | undefined {
  return before === undefined ? since : before + (since ?? 0);
}

function sumByKind(before: ByKind | undefined, since: ByKind | undefined): ByKind | undefined {
  if (!before || !since) return before ?? since;
  const all = { ...before };
  for (const [kind, hits] of Object.entries(since)) all[kind] = sum(all[kind], hits) ?? hits;
  return all;
}
