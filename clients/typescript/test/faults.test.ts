// The rows of clients/conformance/faults.json, each against a service that answers as the row says.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { connect as open } from "node:net";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import type { Client, ClientOptions, Commit, Decision, Hold, Limiter } from "tollkeeper";
import { compare, descriptorOf, type Expected, type JsonDescriptor } from "./json.js";
import { connect, PATIENT_MS, tls } from "./services.js";

interface Row {
  name: string;
  client?: Policy & { commit_timeout_ms?: number; on_call?: "throws"; service?: "tls" };
  steps: Step[];
  on_call?: [string, string][];
  log?: string[];
  logs?: number;
  at_least_ms?: number;
  at_most_ms?: number;
}

interface Policy {
  domain?: string;
  timeout_ms?: number;
  on_failure?: "allow" | "deny" | "throws";
  require_limit?: boolean;
  remember_denials_ms?: number;
}

interface Step {
  method:
    | ("decide" | "check" | "debit" | "part" | "decide_all" | "hold" | "commit")
    | ("close" | "connected" | "pinged" | "wait");
  descriptors?: JsonDescriptor[];
  hits?: number;
  ms?: number;
  calls?: { descriptors?: JsonDescriptor[] }[];
  with?: Policy;
  used?: number;
  release?: boolean;
  commits?: number;
  expect_commit?: { error: string | null };
  renew?: { used: number; estimate: number; leave_meanwhile?: number; expect?: Expected & { hold?: string } };
  while_open?: Step[];
  after?: Step[];
  close_meanwhile?: number;
  leave_meanwhile?: number;
  expect?: (Expected & { hold?: string }) | Expected[] | { error: string | null };
  raises?: string[];
}

const text = readFileSync(new URL("../../../conformance/faults.json", import.meta.url), "utf8");
const { rows } = JSON.parse(text) as { rows: Row[] };
const addresses = JSON.parse(process.env.TOLLKEEPER_FAULTS ?? "{}") as Record<string, string>;

for (const row of rows) {
  const skip = addresses[row.name] ? false : "TOLLKEEPER_FAULTS is not set";
  test(row.name, { skip }, () => new Run(row, addresses[row.name] as string).finish());
}

class Run {
  readonly #calls: [string, string][] = [];
  readonly #lines: string[] = [];
  #client!: Client;

  constructor(
    readonly row: Row,
    readonly address: string,
  ) {}

  async finish(): Promise<void> {
    await this.#tell("begin");
    const start = performance.now();
    const { on_call, service, commit_timeout_ms = PATIENT_MS, ...policy } = this.row.client ?? {};
    this.#client = connect(this.address, {
      ...optionsOf({ timeout_ms: PATIENT_MS, ...policy }),
      ...(service === "tls" && { tls: tls(false) }),
      commitTimeoutMs: commit_timeout_ms,
      log: (line) => this.#lines.push(line),
      onCall: (method, _seconds, outcome) => {
        this.#calls.push([method, outcome]);
        if (on_call === "throws") throw new Error("the hook throws");
      },
    });
    for (const step of this.row.steps) await this.#run(step);
    const ms = performance.now() - start;
    assert(ms >= (this.row.at_least_ms ?? 0), `${ms} ms`);
    assert(ms <= (this.row.at_most_ms ?? Number.POSITIVE_INFINITY), `${ms} ms`);
    if (this.row.on_call) compareCalls(this.#calls, this.row.on_call);
    const log = inSnakeCase(this.#lines.join("\n"));
    for (const part of this.row.log ?? []) {
      const wanted = part.replace("{address}", this.address);
      assert(log.includes(wanted), `${log}: ${wanted}`);
    }
    if (this.row.logs !== undefined) assert.equal(this.#lines.length, this.row.logs, log);
  }

  /** Sends a line to the service, and waits until it has done what the line says. */
  async #tell(line: string): Promise<void> {
    const [host, port] = this.address.split(":");
    const socket = open(Number(port), host);
    socket.write(`${line}\n`);
    await once(socket, "data");
    socket.destroy();
  }

  async #run(step: Step): Promise<void> {
    const done = this.#perform(step);
    if (step.close_meanwhile !== undefined) {
      await this.#tell(`sent ${step.close_meanwhile}`);
      await this.#client.close();
    }
    if (!step.raises) return done;
    await assert.rejects(done, (error: Error) => {
      for (const part of step.raises ?? []) assert(inSnakeCase(error.message).includes(part), error.message);
      return true;
    });
  }

  async #perform(step: Step): Promise<void> {
    const limiter: Limiter = step.with ? this.#client.with(optionsOf(step.with)) : this.#client;
    const descriptors = this.#descriptors(step.descriptors);
    switch (step.method) {
      case "decide":
      case "debit":
      case "part":
        return this.#compare([await limiter[step.method](descriptors, step.hits)], step);
      case "check":
        return this.#compare([await limiter.check(descriptors)], step);
      case "decide_all":
        return this.#compare(
          await limiter.decideAll(
            (step.calls ?? []).map((call) => ({ descriptors: this.#descriptors(call.descriptors) })),
          ),
          step,
        );
      case "commit":
        return compareCommit(
          await limiter.commit("token", { used: step.used }),
          step.expect as { error: string | null },
        );
      case "hold":
        return this.#hold(limiter, step);
      case "wait":
        return pause(step.ms);
      case "close":
        return this.#client.close();
      case "connected":
      case "pinged":
        return this.#tell(step.method);
    }
  }

  async #hold(limiter: Limiter, step: Step): Promise<void> {
    const leaves = new AbortController();
    const leave = async ({ leave_meanwhile: requests }: { leave_meanwhile?: number }) => {
      if (requests) await this.#tell(`sent ${requests}`).then(() => leaves.abort());
    };
    const holding = limiter.with({ signal: leaves.signal }).hold(this.#descriptors(step.descriptors));
    await leave(step);
    await using hold = await holding;
    this.#compare([hold.decision], step);
    compareToken(hold, step.expect as { hold?: string });
    for (const inner of step.while_open ?? []) await this.#run(inner);
    if (step.renew) {
      const { used, estimate, expect } = step.renew;
      const renewal = hold.renew({ used, estimate });
      await leave(step.renew);
      this.#compare([await renewal], { ...step, expect });
      compareToken(hold, expect);
    }
    hold.used = step.used;
    if (step.release) await hold.release();
    for (let commit = 1; commit < (step.commits ?? 1); commit++) {
      compareCommit(await hold.commit(), step.expect_commit);
    }
    for (const inner of step.after ?? []) await this.#run(inner);
  }

  #compare(decisions: Decision[], step: Step): void {
    const expected = [step.expect ?? {}].flat() as (Expected & { hold?: string })[];
    assert.equal(decisions.length, expected.length);
    expected.forEach(({ hold, ...one }, index) => {
      compare(decisions[index] as Decision, one, `${this.row.name}: ${JSON.stringify(step)}`);
    });
  }

  /** The service of a row has no counters that must be new. */
  #descriptors(descriptors: JsonDescriptor[] = [[["user", "{run}"]]]) {
    return descriptors.map((one) => descriptorOf(one));
  }
}

function optionsOf(policy: Policy): ClientOptions & { domain?: string } {
  const { domain, timeout_ms, on_failure, require_limit, remember_denials_ms } = policy;
  const throwing = () => {
    throw new Error("the function throws");
  };
  return {
    ...(domain && { domain }),
    ...(timeout_ms && { timeoutMs: timeout_ms }),
    ...(on_failure && { onFailure: on_failure === "throws" ? throwing : on_failure }),
    ...(require_limit && { requireLimit: true }),
    ...(remember_denials_ms !== undefined && { rememberDenialsMs: remember_denials_ms }),
  };
}

function compareCommit(commit: Commit, expected: { error: string | null } = { error: null }): void {
  if (expected.error === null) assert.equal(commit.error, undefined);
  else assert(`${commit.error?.code}: ${commit.error?.message}`.includes(expected.error), `${commit.error}`);
}

function compareToken(hold: Hold, expected: { hold?: string } | undefined): void {
  if (expected?.hold !== undefined) assert.equal(hold.token, expected.hold);
}

/** An outcome may be one of several. */
function compareCalls(calls: [string, string][], expected: [string, string][]): void {
  const alike = expected.map(([method, outcomes], index) => {
    const outcome = calls[index]?.[1] ?? "";
    return [method, outcomes.split("|").includes(outcome) ? outcome : outcomes];
  });
  assert.deepEqual(calls, alike);
}

/** The names of options in a text as all languages share them. */
function inSnakeCase(text: string): string {
  return text.replaceAll(/onFailure|onCall|requireLimit/g, (name) =>
    name.replace(/[A-Z]/, (letter) => `_${letter.toLowerCase()}`),
  );
}
