const MINUTE_MS = 60_000;

/** Writes one line at once about each kind of event, and then at most one a minute. */
export class Log {
  readonly #write: (line: string) => void;
  readonly #kinds = new Map<string, { writtenAt: number; count: number }>();

  constructor(write: (line: string) => void) {
    this.#write = write;
  }

  /** @param line makes the line from the number of events since the last one */
  add(kind: string, count: number, line: (count: number) => string): void {
    const seen = this.#kinds.get(kind) ?? { writtenAt: Number.NEGATIVE_INFINITY, count: 0 };
    this.#kinds.set(kind, seen);
    seen.count += count;
    const now = performance.now();
    if (now - seen.writtenAt < MINUTE_MS) return;
    const text = line(seen.count);
    seen.writtenAt = now;
    seen.count = 0;
    try {
      this.#write(`tollkeeper: ${text}`);
    } catch {
      // A log that fails changes no answer.
    }
  }
}
