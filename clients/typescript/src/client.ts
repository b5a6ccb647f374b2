// What decides calls: the methods of every client, whatever carries its requests.
import { Connection } from "./connection.js";
import { Decision } from "./decision.js";
import { keyOf } from "./denials.js";
import {
  type Call,
  checkHits,
  checkKinds,
  checkOptions,
  checkType,
  type Descriptor,
  type Descriptors,
  encodeCall,
  listOf,
  tooLarge,
} from "./descriptor.js";
import { CallError, isRefusal } from "./error.js";
import type * as v1 from "./generated/tollkeeper/v1/tollkeeper.js";
import { type Commit, type Estimate, type Held, Hold, type HoldClient, type Usage, type Used } from "./hold.js";
import { cut } from "./log.js";
import type { Answer, Method, Outcome, Request, Transport } from "./transport.js";

/**
 * `outcome` is `ok`, or the gRPC code of what failed, such as `DEADLINE_EXCEEDED`: of the request, or of the first failed call
 * in it. A commit is reported once, with the time of all its attempts.
 */
export type OnCall = (method: Method, seconds: number, outcome: string, error?: CallError) => void;

/** How a client decides. `Limiter.with` changes it. */
export interface Policy {
  /** How long a decision may take, in milliseconds; 50 by default. */
  readonly timeoutMs?: number;
  /** How long a commit may take with all its attempts, in milliseconds; 2,000 by default. */
  readonly commitTimeoutMs?: number;
  /** The decision about a call that gets no answer: `allow` (the default), `deny`, or what the function returns. */
  readonly onFailure?: "allow" | "deny" | ((error: CallError, descriptors: readonly Descriptor[]) => boolean);
  /** Is called after each decision, commit and renewal, for metrics and logs. */
  readonly onCall?: OnCall;
  /** Whether a descriptor that meets no limit and no rule is a mistake, such as a misspelled key; for tests and staging. */
  readonly requireLimit?: boolean;
  /** How long a call that the service has denied is denied again without a request, in milliseconds; 0 by default. */
  readonly rememberDenialsMs?: number;
  /** Ends decisions under way when it is aborted. They are denied. Commits are made all the same. */
  readonly signal?: AbortSignal;
}

export interface BaseOptions extends Policy {
  /** Gets lines about failures, unknown domains and mistakes, at most one a minute of each kind; by default `console.warn`. */
  readonly log?: (line: string) => void;
}

const CALLS_MAX = 1_000;
const utf8 = new TextDecoder();
const DEFAULTS = {
  timeoutMs: 50,
  commitTimeoutMs: 2_000,
  onFailure: "allow" as NonNullable<Policy["onFailure"]>,
  rememberDenialsMs: 0,
};

const OPTIONS = [...Object.keys(DEFAULTS), "onCall", "requireLimit", "signal"];
/** A day: timers take no more than 2^31 ms. */
const TIMEOUT_MAX_MS = 86_400_000;

/** A client, or a view of one with another domain or policy. */
export class Limiter {
  protected readonly connection: Connection;
  readonly #domain: string;
  readonly #policy: Policy & typeof DEFAULTS;

  /** @param connect is called once all else is checked, so that a mistake opens no connection */
  protected constructor(connect: (commitTimeoutMs: number) => Connection, domain: string, changes: Policy) {
    checkOptions(changes, OPTIONS);
    const policy = { ...DEFAULTS, ...changed(changes) };
    const { timeoutMs, commitTimeoutMs, onFailure, rememberDenialsMs } = policy;
    checkType(domain, "string", "domain");
    if (!domain) throw new RangeError("domain: must not be empty");
    checkTimeout(timeoutMs, "timeoutMs");
    checkTimeout(commitTimeoutMs, "commitTimeoutMs");
    checkType(rememberDenialsMs, "number", "rememberDenialsMs");
    if (!(rememberDenialsMs >= 0)) {
      throw new RangeError(`rememberDenialsMs: must be at least 0, not ${rememberDenialsMs}`);
    }
    if (typeof onFailure !== "function" && onFailure !== "allow" && onFailure !== "deny") {
      throw new TypeError("onFailure: must be one of: allow, deny, a function");
    }
    if (policy.onCall !== undefined) checkType(policy.onCall, "function", "onCall");
    if (policy.requireLimit !== undefined) checkType(policy.requireLimit, "boolean", "requireLimit");
    if (policy.signal !== undefined && !(policy.signal instanceof AbortSignal)) {
      throw new TypeError("signal: must be an AbortSignal");
    }
    this.connection = connect(commitTimeoutMs);
    this.#domain = domain;
    this.#policy = policy;
  }

  /** The same client with another domain or policy, on the same connection; cheap enough for one call. */
  with(changes: Policy & { readonly domain?: string }): Limiter {
    checkOptions(changes, [...OPTIONS, "domain"]);
    const { domain = this.#domain, ...policy } = changes;
    return new Limiter(() => this.connection, domain, { ...this.#policy, ...changed(policy) });
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
    const [{ decision }] = await this.#decide([call], () => "");
    return decision;
  }

  /** Decides up to 1,000 calls by one request. The decisions are in the order of the calls, and each call fails alone. */
  async decideAll(calls: readonly Call[]): Promise<Decision[]> {
    if (calls.length > CALLS_MAX) throw new RangeError(`calls: ${calls.length} exceeds ${CALLS_MAX}`);
    const answers = await this.#decide(calls, (index) => `calls[${index}].`);
    return answers.map(({ decision }) => decision);
  }

  /**
   * Holds hits for work that is about to begin. A commit replaces them by what the work has used.
   *
   * @param options `id` names the hold, which is taken once, also if it is repeated within 60 s
   */
  async hold(descriptors: Descriptors, options: Estimate & Pick<Call, "id"> = {}): Promise<Hold> {
    checkOptions(options, ["estimate", "hitsByKind", "id"]);
    const take = async ({ estimate, ...call }: Estimate & Pick<Call, "id">) => {
      checkHits(estimate, "estimate");
      const [held] = await this.#decide([{ descriptors, hits: estimate, ...call }], () => "", true);
      return held;
    };
    const renew: HoldClient["renew"] = (old, estimate) => this.#renew(old, descriptors, estimate);
    return new Hold({ take, renew, commit: this.commit.bind(this) }, options, await take(options));
  }

  /**
   * Commits the hold that has this token, also from another process than its own. It is repeated while it gets no answer,
   * since only the first commit of a hold counts, and does not reject if it fails.
   */
  async commit(token: string, usage: Usage = {}): Promise<Commit> {
    return this.connection.keep(this.#commit(token, usage));
  }

  async #commit(token: string, usage: Usage): Promise<Commit> {
    checkOptions(usage, ["used", "usedByKind", "end"]);
    checkHits(usage.used, "used");
    checkKinds(usage.usedByKind, "usedByKind");
    const start = performance.now();
    const request = { domain: this.#domain, commits: [commitOf({ hold: token, ...usage })] };
    const answer = await this.connection.commit(request, this.#policy.commitTimeoutMs);
    const result = itemOf(answer instanceof CallError ? answer : answer.results[0]);
    const error = result instanceof CallError ? result : undefined;
    this.#report("commit", start, error);
    if (error) this.#log([error], failedCommits);
    return { charges: result instanceof CallError ? [] : result.charges, error };
  }

  /** For middleware: writes a mistake of the caller to the log. */
  logMistake(error: unknown): void {
    this.connection.log.add("mistake", 1, () => `a request could not be limited, and is answered by 500: ${error}`);
  }

  async #decide(calls: readonly Call[], path: (index: number) => string, holds = false): Promise<Held[]> {
    const messages = calls.map((call, index) => encodeCall(call, path(index)));
    if (messages.length === 0) return [];
    const request = { domain: this.#domain, calls: messages };
    const { rememberDenialsMs } = this.#policy;
    const { denials, isClosed } = this.connection;
    const [{ mode = "take", id }] = calls;
    const isRemembered = rememberDenialsMs > 0 && calls.length === 1 && mode === "take" && !id;
    const key = isRemembered && !isClosed ? keyOf(request) : "";
    const denial = denials.find(key, rememberDenialsMs);
    const ask = () => this.connection.keep(this.#send("decide", request, messages, (answer) => answer.verdicts, holds));
    const verdicts = denial ? [denial] : await ask();
    const [verdict] = verdicts;
    if (key && !denial && !(verdict instanceof CallError) && verdict.code === "OVER_LIMIT") denials.add(key, verdict);
    const all = verdicts.map((verdict, index) =>
      this.#held(verdict, calls[index].descriptors, messages[index], path(index), holds),
    );
    const lacking = all.find(({ mistake }) => mistake);
    if (lacking) throw lacking.mistake;
    return all;
  }

  async #renew(old: Used, descriptors: Descriptors, { estimate, hitsByKind }: Estimate): Promise<Held> {
    checkHits(estimate, "estimate");
    const call = encodeCall({ descriptors, hits: estimate, hitsByKind }, "");
    const request = { domain: this.#domain, renewals: [{ commit: commitOf(old), call }] };
    let isCommitted = false;
    const verdictsOf = ({ results }: v1.RenewResponse) => {
      const commit = results[0]?.commit;
      isCommitted = commit ? !commit.error : false;
      return results.map(({ verdict }) => verdict);
    };
    const [verdict] = await this.connection.keep(this.#send("renew", request, [call], verdictsOf, true));
    const hasHold = !(verdict instanceof CallError) && verdict.hold !== "";
    return { ...this.#held(verdict, descriptors, call, "", true), isCommitted: isCommitted || hasHold };
  }

  /** Makes one attempt, and reports it. An item without a verdict is an error. What it `holds` needs its caller. */
  async #send<M extends Method>(
    method: M,
    request: Request<M>,
    calls: readonly v1.Call[],
    verdictsOf: (answer: Answer<M>) => readonly (v1.Verdict | undefined)[],
    holds: boolean,
  ): Promise<(v1.Verdict | CallError)[]> {
    const start = performance.now();
    const { timeoutMs, signal } = this.#policy;
    const giveBack = async (late: Outcome<M>) => {
      const [verdict] = late instanceof CallError ? [] : verdictsOf(late);
      if (verdict?.hold) await this.#commit(verdict.hold, { used: 0 });
    };
    const sent = () => this.connection.send(method, request, timeoutMs, signal, holds ? giveBack : undefined);
    const answer = tooLarge(calls) ?? (await sent());
    const verdicts = answer instanceof CallError ? calls.map(() => answer) : verdictsOf(answer);
    const items = calls.map((call, index) => knownOf(itemOf(verdicts[index]), call));
    const errors = items.filter((item) => item instanceof CallError);
    this.#report(method, start, errors[0]);
    const failures = errors.filter((error) => !isRefusal(error));
    if (!signal?.aborted) this.#log(failures, failedCalls);
    this.#log(
      items.filter((item) => !(item instanceof CallError) && item.domainUnknown),
      unknownCalls,
    );
    this.connection.log.remind();
    return items;
  }

  #held(verdict: v1.Verdict | CallError, descriptors: Descriptors, call: v1.Call, path: string, holds: boolean): Held {
    if (verdict instanceof CallError) {
      return { decision: new Decision(this.#isAllowedWithout(verdict, descriptors), verdict), token: "" };
    }
    const mistake = this.#policy.requireLimit ? this.#lacksLimit(verdict, call, path) : undefined;
    // The caller does not get what it holds.
    if (holds && mistake && verdict.hold) this.commit(verdict.hold, { used: 0 });
    return { decision: new Decision(verdict.code === "OK", verdict), token: mistake ? "" : verdict.hold, mistake };
  }

  #isAllowedWithout(error: CallError, descriptors: Descriptors): boolean {
    const { onFailure, signal } = this.#policy;
    if (signal?.aborted || isRefusal(error)) return false;
    if (typeof onFailure !== "function") return onFailure === "allow";
    const logThrown = (thrown: unknown) =>
      this.connection.log.add("onFailure", 1, () => `onFailure has thrown, so that its call is denied: ${thrown}`);
    try {
      const answer: unknown = onFailure(error, listOf(descriptors));
      // A promise denies. It may still be rejected.
      Promise.resolve(answer).catch(logThrown);
      return answer === true;
    } catch (thrown) {
      logThrown(thrown);
      return false;
    }
  }

  #lacksLimit({ statuses }: v1.Verdict, { descriptors }: v1.Call, path: string): RangeError | undefined {
    const free = statuses.find(({ currentLimit, rule }) => !currentLimit && !rule);
    if (!free) return undefined;
    const keys = descriptors[free.descriptorIndex].entries.map(({ key }) => utf8.decode(key)).join("|");
    const problem = `no limit applies to ${keys} in the domain ${this.#domain} (requireLimit)`;
    return new RangeError(`${path}descriptors[${free.descriptorIndex}]: ${problem}`);
  }

  #log(items: readonly (v1.Verdict | CallError)[], what: (count: number, of: string) => string): void {
    if (items.length === 0) return;
    const last = items[items.length - 1];
    const of = `of the domain "${this.#domain}"`;
    const reason = last instanceof CallError ? `; the last: ${last.code}: ${cut(last.message)}` : "";
    const end = `${reason} (target ${this.connection.target})`;
    this.connection.log.add(what(1, of), items.length, (count) => what(count, of) + end);
  }

  /** Calls the hook, which may also be asynchronous. What it throws changes no answer. */
  async #report(method: Method, start: number, error: CallError | undefined): Promise<void> {
    try {
      await this.#policy.onCall?.(method, (performance.now() - start) / 1_000, error?.code ?? "ok", error);
    } catch (thrown) {
      this.connection.log.add("onCall", 1, () => `onCall has thrown: ${thrown}`);
    }
  }
}

/** A client, which has a connection of its own. */
export class BaseClient extends Limiter {
  protected constructor(open: () => Transport, domain: string, { log, ...policy }: BaseOptions) {
    super((commitTimeoutMs) => new Connection(open, commitTimeoutMs, log), domain, policy);
  }

  /**
   * Ends decisions under way, which `onFailure` decides, waits for commits under way, and closes the connections. For the answer
   * to a hold whose signal was aborted, it waits at most `commitTimeoutMs`.
   */
  close(): Promise<void> {
    return this.connection.close();
  }
}

function failedCalls(count: number, of: string): string {
  const [calls, were] = count === 1 ? ["1 call", "was"] : [`${count} calls`, "were"];
  return `${calls} ${of} had no answer and ${were} decided by onFailure`;
}

function failedCommits(count: number, of: string): string {
  const [commits, estimates] = count === 1 ? ["1 commit", "its estimate"] : [`${count} commits`, "their estimates"];
  return `${commits} ${of} failed, and ${estimates} may count in place of what was used`;
}

function unknownCalls(count: number, of: string): string {
  return `${count} call${count === 1 ? "" : "s"} ${of} met no limit, because the service has no such domain`;
}

/** What a policy has; a field that is undefined is none. */
function changed(policy: Policy): Policy {
  return Object.fromEntries(Object.entries(policy).filter(([, value]) => value !== undefined));
}

function checkTimeout(ms: number, path: string): void {
  checkType(ms, "number", path);
  if (ms > 0 && ms <= TIMEOUT_MAX_MS) return;
  throw new RangeError(`${path}: must be above 0 and at most ${TIMEOUT_MAX_MS}, not ${ms}`);
}

function commitOf({ hold, used, usedByKind = {}, end = "" }: Used): v1.Commit {
  return { hold, used, usedByKind, end };
}

function itemOf<Item extends { readonly error: v1.Verdict["error"] }>(
  item: Item | CallError | undefined,
): Item | CallError {
  if (item instanceof CallError) return item;
  if (!item) return new CallError("UNKNOWN", "the answer has too few items");
  return item.error ? CallError.of(item.error.code, item.error.message) : item;
}

/** A verdict of another code, of none, or on a descriptor that was not sent is no answer. */
function knownOf(verdict: v1.Verdict | CallError, { descriptors }: v1.Call): v1.Verdict | CallError {
  if (verdict instanceof CallError) return verdict;
  const isKnown = verdict.code === "OK" || verdict.code === "OVER_LIMIT";
  if (isKnown && verdict.statuses.every(({ descriptorIndex }) => descriptorIndex in descriptors)) return verdict;
  return new CallError("UNKNOWN", "the verdict is unknown");
}
