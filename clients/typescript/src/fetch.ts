// Requests by `fetch` to the JSON API of the service, for runtimes without TCP sockets, such as edge workers.
import { BaseClient, type BaseOptions } from "./client.js";
import { checkHits, checkType } from "./descriptor.js";
import { ArgumentError, CallError, codeNumber, TOO_LARGE } from "./error.js";
import type * as v1 from "./generated/tollkeeper/v1/tollkeeper.js";
import type { Answer, Method, Request, Sending, Transport } from "./transport.js";

export { CallError } from "./error.js";

export interface ClientOptions extends BaseOptions {
  /** In place of the global `fetch`, such as `(url, init) => env.LIMITS.fetch(url, init)` for a service binding. */
  readonly fetch?: typeof globalThis.fetch;
  /** Headers of each request, such as those that a proxy in front of the service asks for. */
  readonly headers?: Readonly<Record<string, string>>;
}

/** Decides calls, with the methods of the client over gRPC. Values that are bytes must be UTF-8. */
export class Client extends BaseClient {
  /**
   * @param url the address of the service's HTTP listener, such as `http://localhost:8080`
   * @param domain the domain of the rules
   */
  constructor(url: string, domain: string, options: ClientOptions = {}) {
    checkType(options, "object", "options");
    const { fetch, headers, ...others } = options;
    super(() => new Json(url, fetch, headers), domain, others);
  }
}

/** https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md, for answers of proxies. */
const CODES: Readonly<Record<number, string>> = {
  400: "INTERNAL",
  401: "UNAUTHENTICATED",
  403: "PERMISSION_DENIED",
  404: "UNIMPLEMENTED",
  413: TOO_LARGE,
  429: "UNAVAILABLE",
  502: "UNAVAILABLE",
  503: "UNAVAILABLE",
  504: "UNAVAILABLE",
};

class Json implements Transport {
  readonly target: string;
  readonly #base: string;
  readonly #fetch: typeof globalThis.fetch;
  readonly #headers: Readonly<Record<string, string>>;

  constructor(url: string, fetch: typeof globalThis.fetch = globalThis.fetch, headers = {}) {
    const { protocol, origin, pathname, username, password, search } = new URL(url);
    if (protocol !== "http:" && protocol !== "https:") throw new TypeError("url: must begin with http:// or https://");
    if (username || password || search) throw new TypeError("url: must have no user and no query; use headers");
    checkHeaders(headers);
    this.#base = `${origin}${pathname.replace(/\/$/, "")}/v1/`;
    this.target = `${this.#base}, ${protocol === "https:" ? "with" : "without"} TLS`;
    // A runtime's own `fetch` must not be called as a method of another object.
    this.#fetch = (input, init) => fetch(input, init);
    this.#headers = { "content-type": "application/json", ...headers };
  }

  async send<M extends Method>(method: M, request: Request<M>, { timeoutMs, signal }: Sending): Promise<Answer<M>> {
    const body = encode(request);
    const milliseconds = Math.max(1, Math.ceil(timeoutMs));
    // Node 20 never frees a signal of `AbortSignal.any` that has a listener.
    const ending = new AbortController();
    const late = () => ending.abort(new CallError("DEADLINE_EXCEEDED", `no answer within ${milliseconds} ms`));
    const end = () => ending.abort(new CallError("CANCELLED", "the call was ended"));
    const timer = setTimeout(late, milliseconds);
    signal.addEventListener("abort", end);
    // A `fetch` of the caller may not look at the signal.
    const ended = new Promise<never>((_, reject) => {
      ending.signal.addEventListener("abort", () => reject(ending.signal.reason));
    });
    try {
      const request = this.#request(this.#base + method, {
        method: "POST",
        headers: { ...this.#headers, "grpc-timeout": `${milliseconds}m` },
        body,
        redirect: "manual",
        signal: ending.signal,
      });
      return decode(method, await Promise.race([request, ended]));
    } catch (error) {
      if (error instanceof CallError) throw error;
      if (ending.signal.aborted) throw ending.signal.reason;
      throw new CallError("UNAVAILABLE", messageOf(error));
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
    }
  }

  async #request(url: string, init: RequestInit): Promise<JsonAnswer> {
    const response = await this.#fetch(url, init);
    return read(response.status, await response.text());
  }

  close(): void {}
}

/** Does not show a value, which may be a secret. */
function checkHeaders(headers: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(headers)) {
    try {
      new Headers([[name, value]]);
    } catch {
      throw new TypeError(`headers: ${JSON.stringify(name)} must have a valid name and value`);
    }
  }
}

/**
 * JSON with text in place of bytes, and with U+FFFD for each half of a surrogate pair, as gRPC has it. The service refuses their
 * escapes.
 */
function encode(request: Request<Method>): string {
  const json = JSON.stringify(request, function (this: Record<string, unknown>, name, value) {
    // The value of a Buffer is another object by now.
    const bytes = this[name];
    return bytes instanceof Uint8Array ? textOf(bytes) : value;
  });
  return json.replace(/\\\\|\\ud[0-9a-f]{3}/g, (found) => (found === "\\\\" ? found : "\ufffd"));
}

/** `fetch` tells no more than that it failed; why is in its cause. */
function messageOf(error: unknown): string {
  const { message, cause } = error as Error;
  return cause instanceof Error ? `${message}: ${cause.message || cause.name}` : message;
}

interface JsonError {
  readonly code: string;
  readonly message: string;
}

type JsonStatus = Omit<v1.Status, "descriptorIndex" | "rule" | "durationUntilReset" | "limitRemaining"> & {
  readonly descriptor?: number;
  readonly rule?: string;
  readonly durationUntilReset?: string;
  readonly limitRemaining?: number;
};

type JsonVerdict = Partial<Pick<v1.Verdict, "code" | "hold" | "hits" | "domainUnknown">> & {
  readonly statuses?: readonly JsonStatus[];
  readonly error?: JsonError;
};

interface JsonCommitResult {
  readonly charges?: v1.CommittedCharge[];
  readonly error?: JsonError;
}

interface JsonAnswer {
  readonly verdicts?: readonly JsonVerdict[];
  readonly results?: readonly (JsonCommitResult & {
    readonly commit?: JsonCommitResult;
    readonly verdict?: JsonVerdict;
  })[];
  readonly error?: JsonError;
}

function read(status: number, text: string): JsonAnswer {
  let answer: JsonAnswer | undefined;
  try {
    answer = JSON.parse(text);
  } catch {
    // A proxy has answered in its own words.
  }
  if (status === 200 && answer) return answer;
  const { code, message } = answer?.error ?? {};
  if (typeof code === "string") throw CallError.of(codeNumber(status === 413 ? TOO_LARGE : code), message ?? "");
  throw new CallError(CODES[status] ?? "UNKNOWN", `the answer has the status ${status}, and is none of tollkeeper`);
}

const decoders: { readonly [M in Method]: (answer: JsonAnswer) => Answer<M> } = {
  decide: ({ verdicts = [] }) => ({ verdicts: verdicts.map(verdictOf) }),
  commit: ({ results = [] }) => ({ results: results.map(commitResultOf) }),
  renew: ({ results = [] }) => ({
    results: results.map(({ commit, verdict }) => ({
      commit: commit && commitResultOf(commit),
      verdict: verdict && verdictOf(verdict),
    })),
  }),
};

/** JSON may have any types, and the numbers go into headers. */
function decode<M extends Method>(method: M, answer: JsonAnswer): Answer<M> {
  try {
    return decoders[method](answer);
  } catch {
    throw new CallError("UNKNOWN", "the answer cannot be read");
  }
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function textOf(bytes: Uint8Array): string {
  try {
    return utf8.decode(bytes);
  } catch {
    throw new ArgumentError("descriptors: bytes that are no UTF-8 need the client over gRPC");
  }
}

function verdictOf({ statuses = [], error, ...verdict }: JsonVerdict): v1.Verdict {
  const { code = "UNKNOWN", hold = "", hits = 0, domainUnknown = false } = verdict;
  checkType(hold, "string", "hold");
  checkHits(hits, "hits");
  const all = { code, hold, hits, domainUnknown, spendWithin: undefined };
  return { ...all, statuses: statuses.map(statusOf), error: error && errorOf(error) };
}

function statusOf({ descriptor = 0, durationUntilReset, limitRemaining = 0, ...status }: JsonStatus): v1.Status {
  const { rule = "", currentLimit } = status;
  checkHits(descriptor, "descriptor");
  checkType(rule, "string", "rule");
  checkHits(limitRemaining, "limitRemaining");
  checkHits(currentLimit?.requestsPerUnit, "requestsPerUnit");
  const reset = Number.parseFloat(durationUntilReset ?? "0");
  if (!Number.isFinite(reset)) throw new RangeError("durationUntilReset");
  const seconds = Math.floor(reset);
  const nanos = Math.round((reset - seconds) * 1e9);
  return { ...status, descriptorIndex: descriptor, rule, limitRemaining, durationUntilReset: { seconds, nanos } };
}

function commitResultOf({ charges = [], error }: JsonCommitResult): v1.CommitResult {
  return { charges, error: error && errorOf(error) };
}

function errorOf({ code, message }: JsonError): NonNullable<v1.Verdict["error"]> {
  checkType(message, "string", "message");
  return { code: codeNumber(code), message };
}
