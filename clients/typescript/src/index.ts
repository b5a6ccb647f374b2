export type { OnCall, Tls } from "./channel.js";
export { Client, type ClientOptions } from "./client.js";
export type { Decision, Limit, Status } from "./decision.js";
export type { Call, Descriptor, Descriptors, Mode, Value } from "./descriptor.js";
export { CallError } from "./error.js";
export type { Commit, CommittedCharge, Hold, Usage } from "./hold.js";
