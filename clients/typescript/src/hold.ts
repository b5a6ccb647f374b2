// Hits that are held for work under way, until a commit replaces them by what was used.
import type { Client } from "./client.js";
import type { Decision } from "./decision.js";
import { checkHits, checkKinds } from "./descriptor.js";
import type { CallError } from "./error.js";

/** What work has used, for a commit. */
export interface Usage {
  /** Number of hits that were used; 0 releases the hold. If absent, all that was held counts. */
  readonly used?: number | undefined;
  /** The same by kind, such as `{ input: 900, output: 42 }`, for limits with `weights`. */
  readonly usedByKind?: Readonly<Record<string, number>> | undefined;
  /** How the work ended, such as `503 UF`, which the service compares with `unused_on` of the rule. */
  readonly end?: string | undefined;
}

/** What became of a commit. */
export interface Commit {
  /** One for each counter of the hold. */
  readonly charges: readonly CommittedCharge[];
  /** Why nothing was committed; absent if the service answered. */
  readonly error: CallError | undefined;
}

export interface CommittedCharge {
  /** `REPEATED`: the hold was committed before. `LATE`: its time had passed. Both have changed nothing. */
  readonly outcome: "UNKNOWN" | "APPLIED" | "REPEATED" | "LATE";
  /** Number of hits that were held. */
  readonly held: number;
  /** Number of hits that this commit stands for. */
  readonly used: number;
}

/**
 * A hold, or a call that got none. `await using` commits it at the end of its scope, however the scope is left;
 * without `await using`, call `commit` in `finally`.
 */
export class Hold {
  /** How the work ended, such as `503 UF`, which the service compares with `unused_on` of the rule. */
  end: string | undefined;
  readonly #client: Client;
  #used: number | undefined;
  #usedByKind: Readonly<Record<string, number>> | undefined;
  #isEnded = false;

  /** `Client.hold` makes holds. */
  constructor(
    client: Client,
    readonly decision: Decision,
    /** Names the hold for `Client.commit`; empty if nothing was held. */
    readonly token: string,
  ) {
    this.#client = client;
  }

  /** Whether the work may begin. */
  get allowed(): boolean {
    return this.decision.allowed;
  }

  /** Number of hits that the work has used so far. While it is not set, all that was held counts. */
  get used(): number | undefined {
    return this.#used;
  }

  set used(hits: number | undefined) {
    checkHits(hits, "used");
    this.#used = hits;
  }

  /** The same by kind, such as `{ input: 900, output: 42 }`, for limits with `weights`. */
  get usedByKind(): Readonly<Record<string, number>> | undefined {
    return this.#usedByKind;
  }

  set usedByKind(hitsByKind: Readonly<Record<string, number>> | undefined) {
    checkKinds(hitsByKind, "usedByKind");
    this.#usedByKind = hitsByKind && { ...hitsByKind };
  }

  /** Replaces what was held by what was used, and never rejects. It may be repeated; only the first counts. */
  async commit(): Promise<Commit> {
    this.#isEnded = true;
    if (this.token === "") return { charges: [], error: undefined };
    return this.#client.commit(this.token, { used: this.#used, usedByKind: this.#usedByKind, end: this.end });
  }

  /** Gives back all that was held, and never rejects. */
  async release(): Promise<Commit> {
    this.#used = 0;
    this.#usedByKind = undefined;
    return this.commit();
  }

  /** Commits, unless `commit` or `release` was called. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isEnded) await this.commit();
  }
}
