// What a caller passes, checked and as messages. An error names the field and its bound.
import type { CallMessage, DescriptorMessage } from "./wire.js";

/** Text, or any bytes. */
export type Value = string | Uint8Array;

/** What to limit: keys and values in the order of the rule's levels. */
export type Descriptor = Readonly<Record<string, Value>> | readonly (readonly [key: Value, value: Value])[];

/** A descriptor, or several, which pass together or not at all. */
export type Descriptors = Descriptor | readonly Descriptor[];

/** `refund` gives hits back. `Client` describes the others at its methods of these names, and `take` at `decide`. */
export type Mode = "take" | "check" | "read" | "debit" | "part" | "refund";

/** What `Client.decideCall` and `Client.decideAll` take. */
export interface Call {
  readonly descriptors: Descriptors;
  /** 1 by default. Without effect on `check` and `read`. */
  readonly hits?: number | undefined;
  /** `take` by default. */
  readonly mode?: Mode | undefined;
  /** Estimates by kind of a hold, such as `{ input: 900, output: 100 }`, for limits with `weights`. Only with `take`. */
  readonly hitsByKind?: Readonly<Record<string, number>> | undefined;
  /** Names the call: the same call is charged once, also if it is repeated within 60 s. */
  readonly id?: string | undefined;
}

const ID_BYTES_MAX = 128;

const MODES = {
  take: "TAKE",
  check: "CHECK",
  read: "READ",
  debit: "DEBIT",
  part: "PART",
  refund: "TAKE",
} as const;

export function encodeCall(call: Call, path: string): CallMessage {
  const { descriptors, hits, mode = "take", hitsByKind, id = "" } = call;
  if (!Object.hasOwn(MODES, mode)) {
    throw new TypeError(`${path}mode: must be one of: ${Object.keys(MODES).join(", ")}`);
  }
  checkHits(hits, `${path}hits`);
  checkKinds(hitsByKind, `${path}hitsByKind`);
  const size = Buffer.byteLength(id);
  if (size > ID_BYTES_MAX) throw new RangeError(`${path}id: must be at most ${ID_BYTES_MAX} bytes, not ${size}`);
  const list = listOf(descriptors);
  if (list.length === 0) throw new RangeError(`${path}descriptors: at least 1`);
  return {
    descriptors: list.map((descriptor, index) => ({
      entries: encodeEntries(pairsOf(descriptor, `${path}descriptors[${index}]`), `${path}descriptors[${index}]`),
      isNegativeHits: mode === "refund",
    })),
    mode: MODES[mode],
    hits: mode === "check" || mode === "read" ? undefined : hits,
    hitsByKind,
    id,
  };
}

export function listOf(descriptors: Descriptors): readonly Descriptor[] {
  if (!Array.isArray(descriptors)) return [descriptors as Descriptor];
  // The first item of a descriptor is a pair, which begins with a key. The first item of a list is a descriptor.
  const first: unknown = descriptors[0];
  const isPair = Array.isArray(first) && first.length > 0 && !Array.isArray(first[0]);
  return isPair ? [descriptors as Descriptor] : descriptors;
}

export function pairsOf(descriptor: Descriptor, path: string): readonly (readonly [key: Value, value: Value])[] {
  if (Array.isArray(descriptor)) return descriptor;
  if (typeof descriptor !== "object" || descriptor === null) {
    throw new TypeError(`${path}: must be an object or a list of pairs`);
  }
  const keys = Object.keys(descriptor);
  const number = keys.find((key) => /^\d+$/.test(key));
  if (number !== undefined && keys.length > 1) {
    throw new TypeError(`${path}: must be a list of pairs, since an object moves the key ${number} to its front`);
  }
  return Object.entries(descriptor);
}

function encodeEntries(pairs: readonly (readonly [Value, Value])[], path: string): DescriptorMessage["entries"] {
  if (pairs.length === 0) throw new RangeError(`${path}.entries: at least 1`);
  return pairs.map(([key, value], index) => {
    const entry = `${path}.entries[${index}]`;
    if (key.length === 0) throw new RangeError(`${entry}.key: must not be empty`);
    return { key: bytes(key, `${entry}.key`), value: bytes(value, `${entry}.value`) };
  });
}

function bytes(value: Value, path: string): Uint8Array {
  if (typeof value === "string") return Buffer.from(value);
  if (value instanceof Uint8Array) return value;
  throw new TypeError(`${path}: must be a string or a Uint8Array, not ${value === null ? "null" : typeof value}`);
}

export function checkHits(hits: number | undefined, path: string): void {
  if (hits !== undefined && !(Number.isSafeInteger(hits) && hits >= 0)) {
    throw new RangeError(`${path}: must be a whole number from 0 to ${Number.MAX_SAFE_INTEGER}, not ${hits}`);
  }
}

export function checkKinds(hitsByKind: Readonly<Record<string, number>> = {}, path: string): void {
  for (const [kind, hits] of Object.entries(hitsByKind)) checkHits(hits, `${path}.${kind}`);
}
