// A client for unit tests, which decides in memory and sends nothing.
import { BaseClient, type BaseOptions } from "./client.js";
import { checkType, type Descriptors, encodeCall, type Mode } from "./descriptor.js";
import { CallError } from "./error.js";
import type * as v1 from "./generated/tollkeeper/v1/tollkeeper.js";
import type { Answer, Method, Request, Transport } from "./transport.js";

/** A client that allows all calls without a limit, until a test says otherwise. Commits get one attempt. */
export function fake(domain = "test", options: BaseOptions = {}): FakeClient {
  return new FakeClient(domain, options);
}

/** A call that a fake has seen, also one of a renewal. */
export interface SeenCall {
  readonly mode: Mode;
  /** Such as `path=/login,user=alice`. */
  readonly descriptors: readonly string[];
  readonly hits: number | undefined;
}

export class FakeClient extends BaseClient {
  /** The calls so far. */
  readonly calls: readonly SeenCall[];
  /** The commits so far, also of renewals, with the tokens of their holds. */
  readonly commits: readonly Readonly<v1.Commit>[];
  readonly #service: FakeService;

  constructor(domain: string, options: BaseOptions) {
    const service = new FakeService();
    checkType(options, "object", "options");
    super(() => service, domain, { commitTimeoutMs: 1, ...options });
    this.#service = service;
    this.calls = service.calls;
    this.commits = service.commits;
  }

  /** Denies calls with one of these descriptors. */
  deny(descriptors: Descriptors): this {
    return this.limit(descriptors, 0);
  }

  /** Admits this number of hits of each of these descriptors, and no more. */
  limit(descriptors: Descriptors, hits: number): this {
    for (const descriptor of encodeCall({ descriptors }, "").descriptors) {
      this.#service.counters.set(nameOf(descriptor), { limit: hits, used: 0 });
    }
    return this;
  }

  /** Gives no answer but this code, such as `UNAVAILABLE`, to all that follows; without a code, answers again. */
  fail(code?: string): this {
    this.#service.code = code;
    return this;
  }
}

interface Counter {
  readonly limit: number;
  used: number;
}

class FakeService implements Transport {
  readonly target = "a fake";
  readonly calls: SeenCall[] = [];
  readonly commits: v1.Commit[] = [];
  readonly counters = new Map<string, Counter>();
  code: string | undefined;
  readonly #holds = new Map<string, { readonly counters: readonly (Counter | undefined)[]; readonly hits: number }>();

  async send<M extends Method>(method: M, request: Request<M>): Promise<Answer<M>> {
    return this.#answers[method](request);
  }

  close(): void {}

  readonly #answers: { [M in Method]: (request: Request<M>) => Answer<M> } = {
    decide: ({ calls }) => ({ verdicts: calls.map((call) => this.#decide(call)) }),
    commit: ({ commits }) => ({ results: commits.map((commit) => this.#commit(commit)) }),
    renew: ({ renewals }) => ({
      results: renewals.map(({ commit, call }) => ({
        commit: commit && this.#commit(commit),
        verdict: call && this.#decide(call),
      })),
    }),
  };

  #decide({ descriptors, mode, hits = 1 }: v1.Call): v1.Verdict {
    const seen = descriptors[0].isNegativeHits ? "refund" : (mode.toLowerCase() as Mode);
    this.calls.push({ mode: seen, descriptors: descriptors.map(nameOf), hits });
    this.#failIfTold();
    const counters = descriptors.map((descriptor) => this.counters.get(nameOf(descriptor)));
    const room = Math.min(...counters.map(remainingOf));
    const part = seen === "part" ? Math.min(hits, room) : 0;
    const needed = seen === "read" || seen === "refund" ? 0 : part || Math.max(1, hits);
    const isOver = needed > room;
    const change = { take: hits, debit: hits, part, refund: -hits, check: 0, read: 0 }[seen];
    add(counters, isOver && seen !== "debit" ? 0 : change);
    const hold = seen === "take" && !isOver ? `hold-${this.calls.length}` : "";
    if (hold) this.#holds.set(hold, { counters, hits });
    const statuses = counters.map((counter, index) =>
      statusOf(counter, index, isOver && remainingOf(counter) < needed),
    );
    const code = isOver ? "OVER_LIMIT" : "OK";
    return { code, statuses, hold, hits: part, error: undefined, spendWithin: undefined, domainUnknown: false };
  }

  #commit(commit: v1.Commit): v1.CommitResult {
    this.commits.push(commit);
    this.#failIfTold();
    const { counters, hits: held } = this.#holds.get(commit.hold) ?? { counters: [], hits: 0 };
    const outcome = this.#holds.delete(commit.hold) ? "APPLIED" : "REPEATED";
    const { used = held } = commit;
    add(counters, used - held);
    return { charges: [{ outcome, held, used }], error: undefined };
  }

  #failIfTold(): void {
    if (this.code) throw new CallError(this.code, "the fake was told to fail");
  }
}

function nameOf({ entries }: v1.Descriptor): string {
  return entries.map(({ key, value }) => `${Buffer.from(key)}=${Buffer.from(value)}`).join(",");
}

function add(counters: readonly (Counter | undefined)[], hits: number): void {
  for (const counter of counters) if (counter) counter.used = Math.max(0, counter.used + hits);
}

function remainingOf(counter: Counter | undefined): number {
  return counter ? Math.max(0, counter.limit - counter.used) : Number.POSITIVE_INFINITY;
}

function statusOf(counter: Counter | undefined, descriptorIndex: number, isOver: boolean): v1.Status {
  return {
    code: isOver ? "OVER_LIMIT" : "OK",
    descriptorIndex,
    rule: counter ? "fake" : "",
    currentLimit: counter && { name: "", requestsPerUnit: counter.limit, unit: "MINUTE", unitMultiplier: 1 },
    limitRemaining: counter && !isOver ? remainingOf(counter) : 0,
    durationUntilReset: { seconds: 60, nanos: 0 },
    used: counter?.used,
    held: counter && 0,
  };
}
