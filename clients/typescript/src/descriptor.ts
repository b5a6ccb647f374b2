// What a caller passes, checked and as messages. An error names the field and its bound.
import { CallError, TOO_LARGE } from "./error.js";
import type * as v1 from "./generated/tollkeeper/v1/tollkeeper.js";

/** Text, or any bytes. */
export type Value = string | Uint8Array;

/** Keys and values in the order of the rule's levels. */
export type Entries = Readonly<Record<string, Value>> | Pairs;

type Pairs = readonly (readonly [key: Value, value: Value])[];

/** What to limit: entries, also with a limit of the caller's own, which replaces the one of the rules. */
export type Descriptor = Entries | { readonly entries: Entries; readonly limit: OwnLimit };

/** A descriptor, or several, which pass together or not at all. */
// As a tuple, descriptors that a function returns may have different keys.
export type Descriptors = Descriptor | readonly [Descriptor, ...Descriptor[]] | readonly Descriptor[];

export interface OwnLimit {
  /** The most hits in one window, up to 4,294,967,295. */
  readonly hits: number;
  /** The window is this unit, `multiplier` times, 1 by default. */
  readonly unit: (typeof UNITS)[number];
  readonly multiplier?: number;
}

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

const utf8 = new TextEncoder();
const ID_BYTES_MAX = 128;
/**
 * The most bytes of keys and values in a request. End users may send long values, and more would take longer than the timeout,
 * or be refused by the service, which takes 4 MiB. JSON may have six bytes for one.
 */
const ENTRIES_BYTES_MAX = 512 * 1_024;
const UINT32_MAX = 2 ** 32 - 1;
const UNITS = ["SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR"] as const;

const MODES = { take: "TAKE", check: "CHECK", read: "READ", debit: "DEBIT", part: "PART", refund: "TAKE" } as const;

export function encodeCall(call: Call, path: string): v1.Call {
  checkOptions(call, ["descriptors", "hits", "mode", "hitsByKind", "id"], path);
  const { descriptors, hits, mode = "take", hitsByKind, id = "" } = call;
  if (!Object.hasOwn(MODES, mode)) {
    throw new TypeError(`${path}mode: must be one of: ${Object.keys(MODES).join(", ")}`);
  }
  checkHits(hits, `${path}hits`);
  checkKinds(hitsByKind, `${path}hitsByKind`);
  const size = utf8.encode(id).length;
  if (size > ID_BYTES_MAX) throw new RangeError(`${path}id: must be at most ${ID_BYTES_MAX} bytes, not ${size}`);
  const list = listOf(descriptors);
  if (list.length === 0) throw new RangeError(`${path}descriptors: must have at least 1 item`);
  return {
    descriptors: list.map((descriptor, index) =>
      encodeDescriptor(descriptor, `${path}descriptors[${index}]`, mode === "refund"),
    ),
    mode: MODES[mode],
    hits: mode === "check" || mode === "read" ? undefined : hits,
    hitsByKind: hitsByKind ?? {},
    id,
  };
}

/** Number of bytes of all keys and values. */
export function entryBytes(calls: readonly v1.Call[]): number {
  const entries = calls.flatMap(({ descriptors }) => descriptors.flatMap((descriptor) => descriptor.entries));
  return entries.reduce((size, { key, value }) => size + key.length + value.length, 0);
}

/** Why calls are denied without a request, if they are. */
export function tooLarge(calls: readonly v1.Call[]): CallError | undefined {
  const size = entryBytes(calls);
  if (size <= ENTRIES_BYTES_MAX) return undefined;
  return new CallError(TOO_LARGE, `keys and values must have at most ${ENTRIES_BYTES_MAX} bytes, not ${size}`);
}

export function listOf(descriptors: Descriptors): readonly Descriptor[] {
  if (!Array.isArray(descriptors)) return [descriptors as Descriptor];
  // The first item of a descriptor is a pair, which begins with a key. The first item of a list is a descriptor.
  const first: unknown = descriptors[0];
  const isPair = Array.isArray(first) && first.length > 0 && !Array.isArray(first[0]);
  return isPair ? [descriptors as Descriptor] : descriptors;
}

function encodeDescriptor(descriptor: Descriptor, path: string, isNegativeHits: boolean): v1.Descriptor {
  const { entries, limit } = (descriptor ?? {}) as { entries?: Entries; limit?: OwnLimit };
  const hasLimit = typeof entries === "object" && !(entries instanceof Uint8Array);
  if (hasLimit) checkOptions(descriptor, ["entries", "limit"], `${path}.`);
  return {
    entries: encodeEntries(hasLimit ? entries : (descriptor as Entries), path),
    limit: hasLimit && limit ? encodeLimit(limit, `${path}.limit`) : undefined,
    hitsAddend: undefined,
    isNegativeHits,
  };
}

function encodeEntries(entries: Entries, path: string): v1.Descriptor_Entry[] {
  const pairs = pairsOf(entries, path);
  if (pairs.length === 0) throw new RangeError(`${path}.entries: must have at least 1 item`);
  return pairs.map(([key, value], index) => {
    const entry = `${path}.entries[${index}]`;
    if (key.length === 0) throw new RangeError(`${entry}.key: must not be empty`);
    return { key: bytes(key, `${entry}.key`), value: bytes(value, `${entry}.value`) };
  });
}

function pairsOf(entries: Entries, path: string): Pairs {
  if (Array.isArray(entries)) return entries;
  if (typeof entries !== "object" || entries === null) {
    throw new TypeError(`${path}: must be an object or a list of pairs`);
  }
  const keys = Object.keys(entries);
  const number = keys.find((key) => /^\d+$/.test(key));
  if (number !== undefined && keys.length > 1) {
    throw new TypeError(`${path}: must be a list of pairs, since an object moves the key ${number} to its front`);
  }
  return Object.entries(entries);
}

function bytes(value: Value, path: string): Uint8Array {
  if (typeof value === "string") return utf8.encode(value);
  if (value instanceof Uint8Array) return value;
  throw new TypeError(`${path}: must be a string or a Uint8Array, not ${value === null ? "null" : typeof value}`);
}

function encodeLimit(limit: OwnLimit, path: string): v1.Descriptor_Override {
  checkOptions(limit, ["hits", "unit", "multiplier"], `${path}.`);
  const { hits, unit, multiplier = 1 } = limit;
  if (!UNITS.includes(unit)) throw new TypeError(`${path}.unit: must be one of: ${UNITS.join(", ")}`);
  checkWhole(hits, `${path}.hits`, 0, UINT32_MAX);
  checkWhole(multiplier, `${path}.multiplier`, 1, UINT32_MAX);
  return { requestsPerUnit: hits, unit, unitMultiplier: multiplier };
}

/** In JavaScript, a misspelled option would have no effect. */
export function checkOptions(options: object, known: readonly string[], path = ""): void {
  checkType(options, "object", `${path}options`);
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown !== undefined) throw new TypeError(`${path}${unknown}: is not an option`);
}

/** `null` has no type. */
export function checkType(value: unknown, type: string, path: string): void {
  const found = value === null ? "null" : typeof value;
  if (found !== type)
    throw new TypeError(`${path}: must be ${type === "object" ? "an" : "a"} ${type}, not of the type ${found}`);
}

export function checkHits(hits: number | undefined, path: string): void {
  if (hits !== undefined) checkWhole(hits, path, 0, Number.MAX_SAFE_INTEGER);
}

function checkWhole(number: number, path: string, least: number, most: number): void {
  if (Number.isInteger(number) && number >= least && number <= most) return;
  throw new RangeError(`${path}: must be a whole number from ${least} to ${most}, not ${number}`);
}

export function checkKinds(hitsByKind: Readonly<Record<string, number>> = {}, path: string): void {
  for (const [kind, hits] of Object.entries(hitsByKind)) checkHits(hits, `${path}.${kind}`);
}
