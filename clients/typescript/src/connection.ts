// One connection, which several clients may share: its requests, the repetition of commits, and its end.
import { Denials } from "./denials.js";
import { ArgumentError, CallError } from "./error.js";
import { Log } from "./log.js";
import type { Method, Outcome, Request, Sending, Transport } from "./transport.js";

/** An attempt of a commit takes at most this part of the time for all of them. */
const COMMIT_ATTEMPTS = 4;
const COMMIT_PAUSE_MS = 100;
/** Codes of requests that got no answer. */
const UNANSWERED = ["UNAVAILABLE", "UNKNOWN", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"];

/** What ends the requests under way. */
class Aborts extends Set<() => void> {
  handleEvent(): void {
    for (const abort of this) abort();
  }
}

export class Connection {
  readonly log: Log;
  readonly target: string;
  readonly denials = new Denials();
  readonly #transport: Transport;
  readonly #closeMs: number;
  readonly #aborts = new Aborts();
  /** Of the requests whose callers have left. */
  readonly #leftAborts = new Aborts();
  readonly #abortsBySignal = new WeakMap<AbortSignal, Aborts>();
  readonly #kept = new Set<Promise<unknown>>();
  #closed: Promise<void> | undefined;
  /** Until when `close` lets commits begin. */
  #end = Number.POSITIVE_INFINITY;

  /** @param closeMs how long `close` waits for what callers have left, and for commits that begin after it */
  constructor(open: () => Transport, closeMs: number, log: (line: string) => void = console.warn) {
    this.#closeMs = closeMs;
    this.log = new Log(log);
    this.#transport = open();
    this.target = this.#transport.target;
  }

  get isClosed(): boolean {
    return this.#closed !== undefined;
  }

  /**
   * Makes one attempt, which the caller's signal and `close` end. With `giveBack`, the signal ends only the wait: the answer
   * goes to `giveBack` when it comes, and `close` waits for that.
   */
  async send<M extends Method>(
    method: M,
    request: Request<M>,
    timeoutMs: number,
    signal?: AbortSignal,
    giveBack?: (answer: Outcome<M>) => Promise<void>,
  ): Promise<Outcome<M>> {
    if (this.isClosed) return new CallError("CANCELLED", "the client is closed");
    const aborted = new CallError("CANCELLED", "the signal is aborted");
    if (signal?.aborted) return aborted;
    const controller = new AbortController();
    const abort = () => controller.abort();
    this.#aborts.add(abort);
    const sending = { timeoutMs, signal: controller.signal, waits: false };
    const sent = this.#attempt(method, request, sending).finally(() => this.#aborts.delete(abort));
    if (!signal) return sent;
    return new Promise((resolve, reject) => {
      const leave = (give: NonNullable<typeof giveBack>) => {
        this.#aborts.delete(abort);
        this.#leftAborts.add(abort);
        this.keep(sent.finally(() => this.#leftAborts.delete(abort)).then(give, () => {}));
        resolve(aborted);
      };
      const remove = this.#listen(signal, giveBack ? () => leave(giveBack) : abort);
      // Once there is an answer, nobody leaves.
      sent.finally(remove).then(resolve, reject);
    });
  }

  /** Makes attempts until there is an answer, for at most this time. After `close` has begun, only while it waits. */
  async commit(request: Request<"commit">, timeoutMs: number): Promise<Outcome<"commit">> {
    const leftMs = Math.min(timeoutMs, this.#end - performance.now());
    if (leftMs <= 0) return new CallError("CANCELLED", "the client is closed");
    return this.#commit(request, leftMs);
  }

  /** Ends decisions under way, and waits for commits under way. */
  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  /** `close` waits for it. */
  async keep<T>(kept: Promise<T>): Promise<T> {
    this.#kept.add(kept);
    return kept.finally(() => this.#kept.delete(kept));
  }

  /** Calls `abort` with the signal, until the returned function ends that. One listener serves all: Node warns of more than ten. */
  #listen(signal: AbortSignal, abort: () => void): () => void {
    const aborts = this.#abortsBySignal.get(signal) ?? new Aborts();
    this.#abortsBySignal.set(signal, aborts.add(abort));
    signal.addEventListener("abort", aborts);
    return () => {
      aborts.delete(abort);
      if (aborts.size === 0) signal.removeEventListener("abort", aborts);
    };
  }

  async #close(): Promise<void> {
    this.#aborts.handleEvent();
    this.#end = performance.now() + this.#closeMs;
    const timer = setTimeout(() => this.#leftAborts.handleEvent(), this.#closeMs);
    do await Promise.allSettled(this.#kept);
    while (this.#kept.size > 0 && performance.now() < this.#end);
    clearTimeout(timer);
    this.#end = 0;
    this.log.remind(true);
    this.#transport.close();
  }

  async #commit(request: Request<"commit">, timeoutMs: number): Promise<Outcome<"commit">> {
    const { signal } = new AbortController();
    const end = performance.now() + timeoutMs;
    for (let pauseMs = COMMIT_PAUSE_MS; ; pauseMs *= 2) {
      const attemptMs = Math.min(timeoutMs / COMMIT_ATTEMPTS, end - performance.now());
      const answer = await this.#attempt("commit", request, { timeoutMs: attemptMs, signal, waits: true });
      if (!(answer instanceof CallError && UNANSWERED.includes(answer.code))) return answer;
      if (performance.now() + pauseMs >= end) return answer;
      await new Promise((passed) => setTimeout(passed, pauseMs));
    }
  }

  async #attempt<M extends Method>(method: M, request: Request<M>, sending: Sending): Promise<Outcome<M>> {
    try {
      return await this.#transport.send(method, request, sending);
    } catch (error) {
      if (error instanceof ArgumentError) throw error;
      return error instanceof CallError ? error : new CallError("INTERNAL", String(error));
    }
  }
}
