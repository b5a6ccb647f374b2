// The messages of tollkeeper.v1 that the client uses, as the generated descriptor encodes and decodes them.
import { type CallOptions, makeClientConstructor, type ServiceError } from "@grpc/grpc-js";
import { fromJSON } from "@grpc/proto-loader";
import { descriptor } from "./generated/descriptor.js";

export interface DescriptorMessage {
  readonly entries: readonly { readonly key: Uint8Array; readonly value: Uint8Array }[];
  readonly isNegativeHits?: boolean;
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
  readonly code: number;
  readonly message: string;
}

export interface StatusMessage {
  readonly code: "UNKNOWN" | "OK" | "OVER_LIMIT";
  readonly descriptorIndex: number;
  readonly rule: string;
  readonly currentLimit: LimitMessage | null;
  readonly limitRemaining: number;
  readonly durationUntilReset: { readonly seconds: number; readonly nanos: number } | null;
  readonly used: number | undefined;
  readonly held: number | undefined;
}

interface LimitMessage {
  readonly name: string;
  readonly requestsPerUnit: number;
  readonly unit: "UNKNOWN" | "SECOND" | "MINUTE" | "HOUR" | "DAY" | "WEEK" | "MONTH" | "YEAR";
  readonly unitMultiplier: number;
}

export interface VerdictMessage {
  readonly code: "UNKNOWN" | "OK" | "OVER_LIMIT";
  readonly statuses: readonly StatusMessage[];
  readonly hold: string;
  readonly error: ErrorMessage | null;
  readonly hits: number;
}

export interface CommitResultMessage {
  readonly charges: readonly ChargeMessage[];
  readonly error: ErrorMessage | null;
}

interface ChargeMessage {
  readonly outcome: "UNKNOWN" | "APPLIED" | "REPEATED" | "LATE";
  readonly held: number;
  readonly used: number;
}

/** How @grpc/grpc-js reports the end of a call. */
export type Answered<Answer> = (error: ServiceError | null, answer?: Answer) => void;

type Unary<Request, Answer> = (
  request: Request & { readonly domain: string },
  options: CallOptions,
  answered: Answered<Answer>,
) => void;

export interface Service {
  decide: Unary<{ readonly calls: readonly CallMessage[] }, { readonly verdicts: readonly VerdictMessage[] }>;
  commit: Unary<{ readonly commits: readonly CommitMessage[] }, { readonly results: readonly CommitResultMessage[] }>;
  close(): void;
}

type Constructor = ReturnType<typeof makeClientConstructor>;

// A number is exact up to 2^53 - 1, the largest hits and limits of the service.
const definition = fromJSON(descriptor as Parameters<typeof fromJSON>[0], {
  longs: Number,
  enums: String,
  defaults: true,
});
const methods = definition["tollkeeper.v1.Tollkeeper"] as Parameters<typeof makeClientConstructor>[0];

export const Service = makeClientConstructor(methods, "Tollkeeper") as unknown as new (
  ...channel: ConstructorParameters<Constructor>
) => Service;
