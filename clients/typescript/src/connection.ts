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
  readonly #aborts = new Aborts();
  readonly #abortsBySignal = new WeakMap<AbortSignal, Aborts>();
  readonly #commits = new Set<Promise<unknown>>();
  #closed: Promise<void> | undefined;

  constructor(transport: Transport, log: (line: string) => void = console.warn) {
    this.#transport = transport;
    this.target = transport.target;
    this.log = new Log(log);
  }

  get isClosed(): boolean {
    return this.#closed !== undefined;
  }

  /** Makes one attempt, which the caller's signal and `close` end. */
  async send<M extends Method>(
    method: M,
    request: Request<M>,
    timeoutMs: number,
    signal?: AbortSignal,
  ): Promise<Outcome<M>> {
    if (this.isClosed) return new CallError("CANCELLED", "the client is closed");
    if (signal?.aborted) return new CallError("CANCELLED", "the signal is aborted");
    const controller = new AbortController();
    const abort = () => controller.abort();
    this.#aborts.add(abort);
    const remove = signal && this.#listen(signal, abort);
    try {
      return await this.#attempt(method, request, { timeoutMs, signal: controller.signal, waits: false });
    } finally {
      this.#aborts.delete(abort);
      remove?.();
    }
  }

  /** Makes attempts until there is an answer, for at most this time. */
  async commit(request: Request<"commit">, timeoutMs: number): Promise<Outcome<"commit">> {
    if (this.isClosed) return new CallError("CANCELLED", "the client is closed");
    const answer = this.#commit(request, timeoutMs);
    this.#commits.add(answer);
    await answer;
    this.#commits.delete(answer);
    return answer;
  }

  /** Ends decisions under way, and waits for commits under way. */
  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
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
    await Promise.all(this.#commits);
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
