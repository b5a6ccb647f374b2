// The messages of tollkeeper.v1 that the client uses, and what carries them.
import type { Value } from "./descriptor.js";

export type Unit = "UNKNOWN" | "SECOND" | "MINUTE" | "HOUR" | "DAY" | "WEEK" | "MONTH" | "YEAR";

export interface DescriptorMessage {
  readonly entries: readonly { readonly key: Value; readonly value: Value }[];
  readonly limit?: OverrideMessage | undefined;
  readonly isNegativeHits?: boolean;
}

export interface OverrideMessage {
  readonly requestsPerUnit: number;
  readonly unit: Unit;
  readonly unitMultiplier: number;
}

export interface CallMessage {
  readonly descriptors: readonly DescriptorMessage[];
  readonly mode: "TAKE" | "CHECK" | "READ" | "DEBIT" | "PART";
  readonly hits?: number | undefined;
  readonly hitsByKind?: Readonly<Record<string, number>> | undefined;
  readonly id?: string | undefined;
}

export interface CommitMessage {
  readonly hold: string;
  readonly used?: number | undefined;
  readonly usedByKind?: Readonly<Record<string, number>> | undefined;
  readonly end?: string | undefined;
}

export interface ErrorMessage {
  readonly code: number | string;
  readonly message: string;
}

export interface StatusMessage {
  readonly code: "UNKNOWN" | "OK" | "OVER_LIMIT";
  readonly descriptorIndex: number;
  readonly rule: string;
  readonly currentLimit?: LimitMessage | null;
  readonly limitRemaining: number;
  readonly durationUntilReset?: { readonly seconds: number; readonly nanos: number } | null;
  readonly used?: number | undefined;
  readonly held?: number | undefined;
}

export interface LimitMessage {
  readonly name: string;
  readonly requestsPerUnit: number;
  readonly unit: Unit;
  readonly unitMultiplier: number;
}

export interface VerdictMessage {
  readonly code: "UNKNOWN" | "OK" | "OVER_LIMIT";
  readonly statuses: readonly StatusMessage[];
  readonly hold: string;
  readonly error?: ErrorMessage | null;
  readonly hits: number;
}

export interface CommitResultMessage {
  readonly charges: readonly ChargeMessage[];
  readonly error?: ErrorMessage | null;
}

interface ChargeMessage {
  readonly outcome: "UNKNOWN" | "APPLIED" | "REPEATED" | "LATE";
  readonly held: number;
  readonly used: number;
}

export interface RenewResultMessage {
  readonly commit?: CommitResultMessage | null;
  readonly verdict?: VerdictMessage | null;
}

/** What each method takes and answers. */
export interface Methods {
  decide: {
    request: { readonly calls: readonly CallMessage[] };
    answer: { readonly verdicts: readonly VerdictMessage[] };
  };
  commit: {
    request: { readonly commits: readonly CommitMessage[] };
    answer: { readonly results: readonly CommitResultMessage[] };
  };
  renew: {
    request: { readonly renewals: readonly { readonly commit: CommitMessage; readonly call: CallMessage }[] };
    answer: { readonly results: readonly RenewResultMessage[] };
  };
}

export type Method = keyof Methods;
export type Request<M extends Method> = Methods[M]["request"] & { readonly domain: string };
export type Answer<M extends Method> = Methods[M]["answer"];

export interface Sending {
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
  /** Whether to wait for a connection while there is none. */
  readonly waits: boolean;
}

/** Carries requests to the service. */
export interface Transport {
  /** Where requests go, for the log. */
  readonly target: string;
  /** Makes one attempt, and rejects with a `CallError` if it gets no answer within the timeout. */
  send<M extends Method>(method: M, request: Request<M>, sending: Sending): Promise<Answer<M>>;
  close(): void;
}
