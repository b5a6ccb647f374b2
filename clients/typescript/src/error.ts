// The codes of gRPC, by their numbers.
const CODES = [
  "OK",
  "CANCELLED",
  "UNKNOWN",
  "INVALID_ARGUMENT",
  "DEADLINE_EXCEEDED",
  "NOT_FOUND",
  "ALREADY_EXISTS",
  "PERMISSION_DENIED",
  "RESOURCE_EXHAUSTED",
  "FAILED_PRECONDITION",
  "ABORTED",
  "OUT_OF_RANGE",
  "UNIMPLEMENTED",
  "INTERNAL",
  "UNAVAILABLE",
  "DATA_LOSS",
  "UNAUTHENTICATED",
];

/** Why the service gave no answer to a call. */
export class CallError extends Error {
  override readonly name = "CallError";

  /** @param code the name of a gRPC status, such as `UNAVAILABLE` or `DEADLINE_EXCEEDED` */
  constructor(
    readonly code: string,
    message: string,
  ) {
    super(message);
  }

  /** From a gRPC status: of a request, or of one item of an answer. */
  static of(code: number | string, message: string): CallError {
    return new CallError(CODES[Number(code)] ?? String(code), message);
  }
}
