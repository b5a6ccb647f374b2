// One channel to all replicas: how it balances, notices a lost peer, and connects again; and its requests.
import { type ChannelCredentials, type ChannelOptions, credentials } from "@grpc/grpc-js";
import { CallError } from "./error.js";
import {
  type Answered,
  type CallMessage,
  type CommitMessage,
  type CommitResultMessage,
  type ErrorMessage,
  Service,
  type VerdictMessage,
} from "./wire.js";

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

/**
 * `outcome` is `ok`, or the gRPC code of what failed, such as `DEADLINE_EXCEEDED`: of the request, or of the first failed call
 * or commit in it.
 */
export type OnCall = (method: "decide" | "commit", seconds: number, outcome: string, error?: CallError) => void;

export interface ChannelSettings {
  readonly timeoutMs: number;
  readonly tls: Tls | undefined;
  readonly onCall: OnCall | undefined;
}

const OPTIONS: ChannelOptions = {
  // The name of a headless Service has the addresses of all replicas.
  "grpc.service_config": '{"loadBalancingConfig": [{"round_robin": {}}]}',
  // Saves a DNS query for a TXT record, which would also replace the line above.
  "grpc.service_config_disable_resolution": 1,
  // Notices a peer that disappeared without closing its connection, also if calls are rare.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 2_000,
  "grpc.keepalive_permit_without_calls": 1,
  // By default, it may take two minutes to connect again, and half a minute to see new addresses.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
  "grpc.dns_min_time_between_resolutions_ms": 1_000,
};

/** Sends requests. Each settles within the timeout, and none rejects: an item that failed is an error. */
export class Channel {
  readonly #service: Service;
  readonly #settings: ChannelSettings;

  constructor(target: string, settings: ChannelSettings) {
    const name = settings.tls?.serverName;
    const named = name ? { "grpc.ssl_target_name_override": name, "grpc.default_authority": name } : {};
    this.#service = new Service(target, credentialsOf(settings.tls), { ...OPTIONS, ...named });
    this.#settings = settings;
  }

  decide(domain: string, calls: readonly CallMessage[]): Promise<(VerdictMessage | CallError)[]> {
    return this.#send("decide", calls, (options, answered) => {
      this.#service.decide({ domain, calls }, options, (error, answer) => answered(error, answer?.verdicts));
    });
  }

  commit(domain: string, commits: readonly CommitMessage[]): Promise<(CommitResultMessage | CallError)[]> {
    return this.#send("commit", commits, (options, answered) => {
      this.#service.commit({ domain, commits }, options, (error, answer) => answered(error, answer?.results));
    });
  }

  close(): void {
    this.#service.close();
  }

  async #send<Item extends { readonly error: ErrorMessage | null }>(
    method: "decide" | "commit",
    asked: readonly unknown[],
    request: (options: { deadline: number }, answered: Answered<readonly Item[]>) => void,
  ): Promise<(Item | CallError)[]> {
    const start = performance.now();
    const answer = await new Promise<readonly Item[] | CallError>((resolve) => {
      request({ deadline: Date.now() + this.#settings.timeoutMs }, (error, items = []) => {
        resolve(error ? CallError.of(error.code, error.details) : items);
      });
    });
    const items = asked.map((_, index) => (answer instanceof CallError ? answer : itemOf(answer[index])));
    this.#report(
      method,
      (performance.now() - start) / 1_000,
      items.find((item) => item instanceof CallError),
    );
    return items;
  }

  #report(method: "decide" | "commit", seconds: number, error: CallError | undefined): void {
    try {
      this.#settings.onCall?.(method, seconds, error?.code ?? "ok", error);
    } catch (thrown) {
      process.emitWarning(thrown instanceof Error ? thrown : String(thrown));
    }
  }
}

function itemOf<Item extends { readonly error: ErrorMessage | null }>(item: Item | undefined): Item | CallError {
  if (!item) return new CallError("INTERNAL", "the answer has too few items");
  return item.error ? CallError.of(item.error.code, item.error.message) : item;
}

function credentialsOf(tls: Tls | undefined): ChannelCredentials {
  if (!tls) return credentials.createInsecure();
  if (!tls.cert !== !tls.key) throw new TypeError("tls: cert and key must be given together");
  const buffer = (pem: Uint8Array | undefined) => (pem ? Buffer.from(pem) : null);
  return credentials.createSsl(buffer(tls.ca), buffer(tls.key), buffer(tls.cert));
}
