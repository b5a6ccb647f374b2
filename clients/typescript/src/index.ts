import type { ClientOptions as GrpcOptions } from "@grpc/grpc-js";
import { BaseClient, type BaseOptions } from "./client.js";
import { checkType } from "./descriptor.js";
import { Grpc, type Tls } from "./grpc.js";

export { Limiter, type OnCall, type Policy } from "./client.js";
export type { Decision, Limit, Status } from "./decision.js";
export type { Call, Descriptor, Descriptors, Mode, OwnLimit, Value } from "./descriptor.js";
export { CallError } from "./error.js";
export type { Tls } from "./grpc.js";
export type { Commit, CommittedCharge, Estimate, Hold, Usage } from "./hold.js";

export interface ClientOptions extends BaseOptions {
  /** Encrypts connections. `{}` trusts the CAs that Node trusts. */
  readonly tls?: Tls;
  /** Options of @grpc/grpc-js, such as `interceptors`, or a channel of your own as `channelOverride`. */
  readonly grpc?: GrpcOptions;
}

/** Decides calls. Make one for the process: all calls share its connections. */
export class Client extends BaseClient {
  /**
   * @param target the address of the service, such as `localhost:8081`; calls go to all addresses of a name
   * @param domain the domain of the rules
   */
  constructor(target: string, domain: string, options: ClientOptions = {}) {
    if (!target) throw new RangeError("target: must not be empty");
    checkType(options, "object", "options");
    const { tls, grpc, ...others } = options;
    super(() => new Grpc(target, tls, grpc), domain, others);
  }
}
