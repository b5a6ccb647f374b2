import { checkType } from "./descriptor.js";

const MINUTE_MS = 60_000;
const TEXT_LENGTH_MAX = 300;
/** Would begin a line that looks like another, or show its text in another order. */
const UNSAFE = /[\p{Cc}\u2028-\u202e\u2066-\u2069]/gu;

/** Bounds a text of the service. */
export function cut(text: string): string {
  return text.length > TEXT_LENGTH_MAX ? `${text.slice(0, TEXT_LENGTH_MAX)}…` : text;
}

/** Writes one line at once about each kind of event, and then at most one a minute. */
export class Log {
  readonly #write: (line: string) => void;
  /** By kind, in the order of their last lines: the number of events since then, and what makes the next line. */
  readonly #kinds = new Map<string, { dueAt: number; count: number; line: (count: number) => string }>();
  /** No minute is over before; a map takes long to find its first key after many were deleted. */
  #dueAt = 0;

  constructor(write: (line: string) => void) {
    checkType(write, "function", "log");
    this.#write = write;
  }

  /** @param line makes the line from the number of events since the last one */
  add(kind: string, count: number, line: (count: number) => string): void {
    const before = this.#kinds.get(kind);
    if (before) Object.assign(before, { count: before.count + count, line });
    else this.#say(kind, count, line);
    this.remind();
  }

  /** Writes the numbers whose minute is over; all if the client closes. */
  remind(closes = false): void {
    const now = performance.now();
    if (now < this.#dueAt && !closes) return;
    for (const [kind, { dueAt, count, line }] of this.#kinds) {
      if (now < dueAt && !closes) {
        this.#dueAt = dueAt;
        return;
      }
      if (count > 0) this.#say(kind, count, line);
      else if (now >= dueAt) this.#kinds.delete(kind);
    }
  }

  #say(kind: string, count: number, line: (count: number) => string): void {
    this.#kinds.delete(kind);
    this.#kinds.set(kind, { dueAt: performance.now() + MINUTE_MS, count: 0, line });
    // A log that fails, also later, changes no answer.
    const write = async () => this.#write(`tollkeeper: ${line(count)}`.replace(UNSAFE, " "));
    write().catch(() => {});
  }
}
