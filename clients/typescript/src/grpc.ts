// Requests by @grpc/grpc-js, over one channel to all replicas: how it balances, notices a lost peer, and connects again.
import {
  type CallOptions,
  type ChannelCredentials,
  type ClientOptions,
  type ClientUnaryCall,
  credentials,
  Metadata,
  type ServiceError,
} from "@grpc/grpc-js";
import { CallError } from "./error.js";
import { TollkeeperClient } from "./generated/tollkeeper/v1/tollkeeper.js";
import type { Answer, Method, Request, Sending, Transport } from "./transport.js";

/** Certificates and the key as PEM. */
export interface Tls {
  /** CAs of the service's certificate; by default the CAs that Node trusts. */
  readonly ca?: Uint8Array;
  /** The certificate of this client, if the service requires one, with `key`. */
  readonly cert?: Uint8Array;
  readonly key?: Uint8Array;
  /** The name in the service's certificate, if it differs from the name in the target. */
  readonly serverName?: string;
}

const OPTIONS: ClientOptions = {
  // The name of a headless Service has the addresses of all replicas.
  "grpc.service_config": '{"loadBalancingConfig": [{"round_robin": {}}]}',
  // Saves a DNS query for a TXT record, which would also replace the line above.
  "grpc.service_config_disable_resolution": 1,
  // By default, the connections end after half an hour without a call. This is the longest time that a timer can have.
  "grpc.client_idle_timeout_ms": 2 ** 31 - 1,
  // Notices a peer that disappeared without closing its connection, also if calls are rare.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 2_000,
  "grpc.keepalive_permit_without_calls": 1,
  // By default, it may take two minutes to connect again, and half a minute to see new addresses.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
  "grpc.dns_min_time_between_resolutions_ms": 1_000,
};

type Unary<M extends Method> = (
  request: Request<M>,
  metadata: Metadata,
  options: CallOptions,
  answered: (error: ServiceError | null, answer: Answer<M>) => void,
) => ClientUnaryCall;

/** It begins to connect when it is made. */
export class Grpc implements Transport {
  readonly target: string;
  readonly #client: TollkeeperClient;

  constructor(target: string, tls: Tls | undefined, options: ClientOptions = {}) {
    this.target = `${target}, ${tls ? "with" : "without"} TLS`;
    const name = tls?.serverName;
    const named = name ? { "grpc.ssl_target_name_override": name, "grpc.default_authority": name } : {};
    const all = { ...OPTIONS, ...named, ...options };
    this.#client = new TollkeeperClient(target, credentialsOf(tls), all);
    this.#client.getChannel().getConnectivityState(true);
  }

  send<M extends Method>(method: M, request: Request<M>, { timeoutMs, signal, waits }: Sending): Promise<Answer<M>> {
    return new Promise((resolve, reject) => {
      const unary = this.#client[method].bind(this.#client) as unknown as Unary<M>;
      const call = unary(
        request,
        new Metadata({ waitForReady: waits }),
        { deadline: Date.now() + timeoutMs },
        (error, answer) => (error ? reject(CallError.of(error.code, error.details)) : resolve(answer)),
      );
      signal.addEventListener("abort", () => call.cancel(), { once: true });
    });
  }

  close(): void {
    this.#client.close();
  }
}

function credentialsOf(tls: Tls | undefined): ChannelCredentials {
  if (!tls) return credentials.createInsecure();
  if (!tls.cert !== !tls.key) throw new TypeError("tls: cert and key must be given together");
  const buffer = (pem: Uint8Array | undefined) => (pem ? Buffer.from(pem) : null);
  return credentials.createSsl(buffer(tls.ca), buffer(tls.key), buffer(tls.cert));
}
