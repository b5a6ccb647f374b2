// Requests by @grpc/grpc-js, over one channel to all replicas: how it balances, notices a lost peer, and connects again.
import type { Socket } from "node:net";
import {
  type ChannelCredentials,
  type ClientOptions,
  connectivityState,
  credentials,
  Metadata,
  type MethodDefinition,
  type requestCallback,
} from "@grpc/grpc-js";
import { checkOptions, checkType } from "./descriptor.js";
import { CallError } from "./error.js";
import { TollkeeperClient, TollkeeperService } from "./generated/tollkeeper/v1/tollkeeper.js";
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
  // A new channel makes new attempts to connect.
  "grpc.use_local_subchannel_pool": 1,
  // By default, it may take two minutes to connect again, and half a minute to see new addresses.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
  "grpc.dns_min_time_between_resolutions_ms": 1_000,
};

const ATTEMPT_MS = 2_000;

const methods: { readonly [M in Method]: MethodDefinition<Request<M>, Answer<M>> } = TollkeeperService;

/** The sockets of a client. grpc-js leaves those open whose peer has accepted and says nothing. */
class Sockets extends Set<Socket> {
  #isOver = false;

  override add(socket: Socket): this {
    socket.once("close", () => this.delete(socket));
    if (this.#isOver) socket.destroy();
    return super.add(socket);
  }

  end(): void {
    this.#isOver = true;
    for (const socket of this) socket.destroy();
  }
}

function follow(credentials: ChannelCredentials, sockets: Sockets): ChannelCredentials {
  // Another version of grpc-js may do without it.
  const create = credentials._createSecureConnector?.bind(credentials);
  if (!create) return credentials;
  credentials._createSecureConnector = (...args) => {
    const connector = create(...args);
    const connect = connector.connect.bind(connector);
    connector.connect = (socket) => {
      sockets.add(socket);
      return connect(socket);
    };
    return connector;
  };
  return credentials;
}

/** It begins to connect when it is made. */
export class Grpc implements Transport {
  readonly target: string;
  readonly #connect: () => TollkeeperClient;
  readonly #timer: NodeJS.Timeout | undefined;
  readonly #isOver: boolean;
  #client: TollkeeperClient;
  #sockets = new Sockets();
  #wasConnecting = false;

  constructor(target: string, tls: Tls | undefined, options: ClientOptions = {}) {
    this.target = `${target}, ${tls ? "with" : "without"} TLS`;
    const name = tls?.serverName;
    const named = name ? { "grpc.ssl_target_name_override": name, "grpc.default_authority": name } : {};
    const all = { ...OPTIONS, ...named, ...options };
    this.#connect = () => {
      this.#sockets = new Sockets();
      return new TollkeeperClient(target, follow(credentialsOf(tls), this.#sockets), all);
    };
    this.#client = this.#connect();
    this.#client.getChannel().getConnectivityState(true);
    this.#isOver = all.channelOverride !== undefined;
    if (!this.#isOver) this.#timer = setInterval(() => this.#endLateAttempt(), ATTEMPT_MS).unref();
  }

  /** An attempt to connect would end only when the system gives it up, after some minutes. */
  #endLateAttempt(): void {
    const isConnecting = this.#client.getChannel().getConnectivityState(true) === connectivityState.CONNECTING;
    if (isConnecting && this.#wasConnecting) {
      this.#end();
      this.#client = this.#connect();
      this.#client.getChannel().getConnectivityState(true);
    }
    this.#wasConnecting = isConnecting;
  }

  send<M extends Method>(method: M, request: Request<M>, { timeoutMs, signal, waits }: Sending): Promise<Answer<M>> {
    const { path, requestSerialize: encode, responseDeserialize: decode } = methods[method];
    const metadata = new Metadata({ waitForReady: waits });
    const deadline = Date.now() + timeoutMs;
    return new Promise((resolve, reject) => {
      const answered: requestCallback<Answer<M>> = (error, answer) =>
        error ? reject(CallError.of(error.code, error.details)) : resolve(answer as Answer<M>);
      const call = this.#client.makeUnaryRequest(path, encode, decode, request, metadata, { deadline }, answered);
      signal.addEventListener("abort", () => call.cancel(), { once: true });
    });
  }

  /** A channel of the caller's own stays open. */
  close(): void {
    clearInterval(this.#timer);
    if (!this.#isOver) this.#end();
  }

  #end(): void {
    this.#client.close();
    this.#sockets.end();
  }
}

function credentialsOf(tls: Tls | undefined): ChannelCredentials {
  if (tls === undefined) return credentials.createInsecure();
  checkType(tls, "object", "tls");
  checkOptions(tls, ["ca", "cert", "key", "serverName"], "tls.");
  if (!tls.cert !== !tls.key) throw new TypeError("tls: cert and key must be given together");
  const buffer = (pem: Uint8Array | undefined) => (pem ? Buffer.from(pem) : null);
  return credentials.createSsl(buffer(tls.ca), buffer(tls.key), buffer(tls.cert));
}
