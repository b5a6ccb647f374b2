const MINUTE_MS = 60_000;

/** Writes one line at once about each kind of event, and then at most one a minute. */
export class Log {
  readonly #write: (line: string) => void;
  readonly #writtenAt = new Map<string, number>();
  /** The number of events that no line shows yet, and what makes it. */
  readonly #unsaid = new Map<string, { count: number; line: (count: number) => string }>();

  constructor(write: (line: string) => void) {
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
      try {
        this.#write(`tollkeeper: ${line(count)}`);
      } catch {
        // A log that fails changes no answer.
      }
    }
  }
}
