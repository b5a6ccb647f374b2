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
  readonly #writtenAt = new Map<string, number>();
  /** The number of events that no line shows yet, and what makes it. */
  readonly #unsaid = new Map<string, { count: number; line: (count: number) => string }>();

  constructor(write: (line: string) => void) {
    checkType(write, "function", "log");
    this.#write = write;
  }

  /** @param line makes the line from the number of events since the last one */
  add(kind: string, count: number, line: (count: number) => string): void {
    const { count: before } = this.#unsaid.get(kind) ?? { count: 0 };
    this.#unsaid.set(kind, { count: before + count, line });
    this.remind();
  }

  /** Writes the numbers whose minute is over; all if the client closes. */
  remind(closes = false): void {
    for (const [kind, { count, line }] of this.#unsaid) {
      const now = performance.now();
      if (!closes && now - (this.#writtenAt.get(kind) ?? Number.NEGATIVE_INFINITY) < MINUTE_MS) continue;
      this.#writtenAt.set(kind, now);
      this.#unsaid.delete(kind);
      // A log that fails, also later, changes no answer.
      const write = async () => this.#write(`tollkeeper: ${line(count)}`.replace(UNSAFE, " "));
      write().catch(() => {});
    }
  }
}
