// A client for unit tests, which decides in memory and sends nothing.
import { Limiter, type Policy } from "./client.js";
import { Connection } from "./connection.js";
import { type Descriptors, encodeCall, type Mode, textOf } from "./descriptor.js";
import { CallError } from "./error.js";
import type {
  Answer,
  CallMessage,
  CommitMessage,
  CommitResultMessage,
  DescriptorMessage,
  Method,
  Request,
  StatusMessage,
  Transport,
  VerdictMessage,
} from "./wire.js";

/** A client that allows all calls without a limit, until a test says otherwise. Commits get one attempt. */
export function fake(domain = "test", policy: Policy & { log?: (line: string) => void } = {}): FakeClient {
  return new FakeClient(domain, policy);
}

/** A call that a fake has seen, also one of a renewal. */
export interface SeenCall {
  readonly mode: Mode;
  /** Such as `path=/login,user=alice`. */
  readonly descriptors: readonly string[];
  readonly hits: number | undefined;
}

export class FakeClient extends Limiter {
  readonly #service: FakeService;

  constructor(domain: string, { log, ...policy }: Policy & { log?: (line: string) => void }) {
    const service = new FakeService();
    super(new Connection(service, log), domain, { commitTimeoutMs: 1, ...policy });
    this.#service = service;
  }

  /** The calls so far. */
  get calls(): readonly SeenCall[] {
    return this.#service.calls;
  }

  /** The commits so far, also of renewals. */
  get commits(): readonly CommitMessage[] {
    return this.#service.commits;
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

  /** As the `close` of a client. */
  close(): Promise<void> {
    return this.connection.close();
  }
}

interface Counter {
  readonly limit: number;
  used: number;
}

class FakeService implements Transport {
  readonly target = "a fake";
  readonly calls: SeenCall[] = [];
  readonly commits: CommitMessage[] = [];
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
      results: renewals.map(({ commit, call }) => ({ commit: this.#commit(commit), verdict: this.#decide(call) })),
    }),
  };

  #failIfTold(): void {
    if (this.code) throw new CallError(this.code, "the fake was told to fail");
  }

  #decide({ descriptors, mode, hits = 1 }: CallMessage): VerdictMessage {
    const isRefund = descriptors.some(({ isNegativeHits }) => isNegativeHits);
    const seen = isRefund ? "refund" : (mode.toLowerCase() as Mode);
    this.calls.push({ mode: seen, descriptors: descriptors.map(nameOf), hits });
    this.#failIfTold();
    const counters = descriptors.map((descriptor) => this.counters.get(nameOf(descriptor)));
    const room = Math.min(...counters.map(remainingOf));
    const part = mode === "PART" ? Math.min(hits, room) : 0;
    const needed = seen === "read" || seen === "refund" ? 0 : part || hits;
    const isOver = needed > room;
    const change = { take: hits, debit: hits, part, refund: -hits, check: 0, read: 0 }[seen];
    const charged = isOver && seen !== "debit" ? 0 : change;
    for (const counter of counters) if (counter) counter.used = Math.max(0, counter.used + charged);
    const isHeld = seen === "take" && !isOver;
    const token = isHeld ? `hold-${this.calls.length}` : "";
    if (isHeld) this.#holds.set(token, { counters, hits });
    const statuses = counters.map((counter, index) =>
      statusOf(counter, index, isOver && remainingOf(counter) < needed),
    );
    return { code: isOver ? "OVER_LIMIT" : "OK", statuses, hold: token, hits: part };
  }

  #commit(commit: CommitMessage): CommitResultMessage {
    this.commits.push(commit);
    this.#failIfTold();
    const held = this.#holds.get(commit.hold);
    this.#holds.delete(commit.hold);
    const { hits = 0, counters = [] } = held ?? {};
    const used = commit.used ?? hits;
    for (const counter of counters) if (counter) counter.used = Math.max(0, counter.used + used - hits);
    return { charges: [{ outcome: held ? "APPLIED" : "REPEATED", held: hits, used }] };
  }
}

function nameOf({ entries }: DescriptorMessage): string {
  return entries.map(({ key, value }) => `${textOf(key)}=${textOf(value)}`).join(",");
}

function remainingOf(counter: Counter | undefined): number {
  return counter ? Math.max(0, counter.limit - counter.used) : Number.POSITIVE_INFINITY;
}

function statusOf(counter: Counter | undefined, descriptorIndex: number, isOver: boolean): StatusMessage {
  const common = { descriptorIndex, code: isOver ? "OVER_LIMIT" : "OK", used: counter?.used, held: 0 } as const;
  if (!counter) return { ...common, rule: "", limitRemaining: 0 };
  return {
    ...common,
    rule: "fake",
    currentLimit: { name: "", requestsPerUnit: counter.limit, unit: "MINUTE", unitMultiplier: 1 },
    limitRemaining: isOver ? 0 : remainingOf(counter),
    durationUntilReset: { seconds: 60, nanos: 0 },
  };
}
