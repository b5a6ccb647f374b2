// What carries requests to the service.
import type { CallError } from "./error.js";
import type * as v1 from "./generated/tollkeeper/v1/tollkeeper.js";

/** What each method takes and answers. */
export interface Methods {
  decide: { request: v1.DecideRequest; answer: v1.DecideResponse };
  commit: { request: v1.CommitRequest; answer: v1.CommitResponse };
  renew: { request: v1.RenewRequest; answer: v1.RenewResponse };
}

export type Method = keyof Methods;
export type Request<M extends Method> = Methods[M]["request"];
export type Answer<M extends Method> = Methods[M]["answer"];

/** What becomes of a request. */
export type Outcome<M extends Method> = Answer<M> | CallError;

export interface Sending {
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
  /** Whether to wait for a connection while there is none. */
  readonly waits: boolean;
}

export interface Transport {
  /** Where requests go, for the log. */
  readonly target: string;
  /** Makes one attempt, and rejects with a `CallError` if it gets no answer within the timeout. */
  send<M extends Method>(method: M, request: Request<M>, sending: Sending): Promise<Answer<M>>;
  close(): void;
}
