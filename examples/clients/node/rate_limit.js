// A client of a rate-limit service, whose protos are in `protos`, here the folder proto/ of the repository.
'use strict';

const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

// The decision when the service does not answer: true fails open, false closed.
const ALLOWED_ON_FAILURE = true;

const OPTIONS = {
  // Uses every address of the name, so that all replicas of a headless Service get calls.
  'grpc.service_config': '{"loadBalancingConfig": [{"round_robin": {}}]}',
  // Notices a peer that disappeared without closing the connection.
  'grpc.keepalive_time_ms': 10_000,
  'grpc.keepalive_timeout_ms': 2_000,
  // By default it may be two minutes until the service is found again.
  'grpc.initial_reconnect_backoff_ms': 100,
  'grpc.max_reconnect_backoff_ms': 1_000,
};

/** Calls a rate-limit service. Make one for the process: all requests share its connections. */
class Limiter {
  constructor(address, protos, deadlineMs = 50) {
    const definition = loader.loadSync('envoy/service/ratelimit/v3/rls.proto', {
      includeDirs: [protos],
      enums: String,
      defaults: true,
    });
    const { RateLimitService } =
      grpc.loadPackageDefinition(definition).envoy.service.ratelimit.v3;
    // With TLS: grpc.credentials.createSsl(…).
    this.service = new RateLimitService(address, grpc.credentials.createInsecure(), OPTIONS);
    this.deadlineMs = deadlineMs;
  }

  /**
   * Charges one hit to the descriptor, an object of keys and values in the rules' order. Settles within the
   * deadline, whatever the service does, and never rejects.
   */
  allow(domain, descriptor) {
    // Envoy's own protos have text where these have bytes.
    const entries = Object.entries(descriptor)
      .map(([key, value]) => ({ key: Buffer.from(key), value: Buffer.from(value) }));
    const request = { domain, descriptors: [{ entries }] };
    // A deadline is a point in time: make one for each call.
    const deadline = Date.now() + this.deadlineMs;
    return new Promise((resolve) => {
      this.service.shouldRateLimit(request, { deadline }, (error, response) => {
        resolve(error ? { allowed: ALLOWED_ON_FAILURE, failure: error.code } : decision(response));
      });
    });
  }

  /** Closes the connections. */
  close() {
    this.service.close();
  }
}

function decision(response) {
  // One status for each descriptor, in their order.
  const [status = {}] = response.statuses;
  return {
    allowed: response.overallCode !== 'OVER_LIMIT',
    // The values of the descriptor; the limit is 0 if no rule limits it.
    limit: status.currentLimit?.requestsPerUnit ?? 0,
    remaining: status.limitRemaining ?? 0,
    resetSeconds: Number(status.durationUntilReset?.seconds ?? 0),
    // For the response to your own client; the service's --headers selects them.
    headers: Object.fromEntries(response.responseHeadersToAdd.map(({ key, value }) => [key, value])),
  };
}

module.exports = { Limiter };
