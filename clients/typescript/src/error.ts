import { status } from "@grpc/grpc-js";

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
    return new CallError(status[code] ?? String(code), message);
  }
}
