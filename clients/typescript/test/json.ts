// The values of ../../conformance/*.json: descriptors, and what is expected of decisions.
import assert from "node:assert/strict";
import type { Decision, Descriptor, OwnLimit, Value } from "tollkeeper";

type JsonValue = string | { hex: string } | { text: string; times: number };
export type JsonDescriptor = [JsonValue, JsonValue][];

export interface JsonLimit {
  requests_per_unit: number;
  unit: string;
}

export interface Expected {
  allowed?: boolean;
  failed?: boolean;
  limit?: number | null;
  remaining?: number;
  hits?: number;
  rule?: string;
  reset?: true;
  retry_after?: boolean;
  error?: string;
  headers?: Record<string, string>;
  statuses?: ExpectedStatus[];
}

interface ExpectedStatus {
  allowed?: boolean;
  limit?: number | null;
  remaining?: number;
  name?: string;
  rule?: string;
  used?: number;
  held?: number;
}

export function descriptorOf(descriptor: JsonDescriptor, limit?: JsonLimit): Descriptor {
  const value = (json: JsonValue): Value => {
    if (typeof json === "string") return json;
    return "hex" in json ? Buffer.from(json.hex, "hex") : json.text.repeat(json.times);
  };
  const entries = descriptor.map(([key, one]) => [value(key), value(one)] as const);
  if (!limit) return entries;
  return { entries, limit: { hits: limit.requests_per_unit, unit: limit.unit.toUpperCase() as OwnLimit["unit"] } };
}

export function compare(decision: Decision, expected: Expected, step: string): void {
  const { reset, retry_after, error, headers, statuses, limit, ...equal } = expected;
  for (const [key, value] of Object.entries(equal)) {
    assert.equal(decision[key as keyof typeof equal], value, `${key} of ${step}`);
  }
  if (limit !== undefined) assert.equal(decision.limit ?? null, limit, `limit of ${step}`);
  if (reset) assert(decision.resetSeconds > 0, `reset of ${step}`);
  if (retry_after === true) assert((decision.retryAfterSeconds ?? 0) >= 1, `retry_after of ${step}`);
  if (retry_after === false) assert.equal(decision.retryAfterSeconds, undefined, `retry_after of ${step}`);
  if (error !== undefined) {
    assert(
      `${decision.error?.code}: ${decision.error?.message}`.includes(error),
      `${decision.error}: error of ${step}`,
    );
  }
  if (headers) assert.deepEqual(decision.headers(), headers, `headers of ${step}`);
  if (!statuses) return;
  assert.equal(decision.statuses.length, statuses.length, `statuses of ${step}`);
  statuses.forEach((status, index) => {
    const { limit, ...rest } = decision.statuses[index] as Decision["statuses"][number];
    const actual: Record<string, unknown> = { ...rest, limit: limit?.hits ?? null, name: limit?.name };
    for (const [key, value] of Object.entries(status))
      assert.equal(actual[key], value, `${key} of ${index} of ${step}`);
  });
}
