/** The names of gRPC's statuses, by their numbers: https://grpc.io/docs/guides/status-codes/. */
const CODES = (
  "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED " +
  "FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED"
).split(" ");

/** The code of a request that is too large. */
export const TOO_LARGE = "OUT_OF_RANGE";

/**
 * Whether the service has refused a call for its size or its form. Otherwise an end user who chooses the number of items or a
 * value could pass any limit.
 */
export function isRefusal({ code }: CallError): boolean {
  return code === TOO_LARGE || code === "INVALID_ARGUMENT";
}

/** The number of a status; of one without a name here, the number of UNKNOWN. */
export function codeNumber(name: string): number {
  const number = CODES.indexOf(name);
  return number < 0 ? CODES.indexOf("UNKNOWN") : number;
}

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
  static of(code: number, message: string): CallError {
    return new CallError(CODES[code] ?? "UNKNOWN", message);
  }
}

/** A mistake of the caller that only the transport can see. It is no failure of the service, and `onFailure` does not decide it. */
export class ArgumentError extends TypeError {}
