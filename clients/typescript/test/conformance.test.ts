// The cases of clients/conformance, which the clients of all languages run.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import type { Call, Decision, Descriptor, Limiter, Policy, Value } from "tollkeeper";
import { Client as FetchClient } from "tollkeeper/fetch";
import { compare, descriptorOf, type Expected, type JsonDescriptor, type JsonLimit } from "./json.js";
import { connect, PATIENT_MS, random, serviceTest, tls, variable } from "./services.js";

interface Case {
  name: string;
  client?: { service?: string; domain?: string; on_failure?: "allow" | "deny" | "function"; timeout_ms?: number };
  steps: Step[];
}

interface Step {
  method: "decide" | "check" | "read" | "debit" | "part" | "refund" | "hold" | "decide_all";
  descriptors?: JsonDescriptor[];
  limit?: JsonLimit;
  hits?: number;
  calls?: { descriptors: JsonDescriptor[]; hits?: number; mode?: Call["mode"]; id?: string }[];
  estimate?: number;
  hits_by_kind?: Record<string, number>;
  while_open?: Step[];
  used?: number;
  used_by_kind?: Record<string, number>;
  end?: string;
  release?: boolean;
  renew?: { used: number; estimate: number };
  fails?: boolean;
  commits?: number;
  expect?: Expected | Expected[];
  raises?: string[];
}

const text = readFileSync(new URL("../../../conformance/cases.json", import.meta.url), "utf8");
const names = (JSON.parse(text) as { cases: Case[] }).cases.map(({ name }) => name);

names.forEach((name, index) => {
  const run = async (clientOf: (one: Case) => Limiter | undefined) => {
    const cases = JSON.parse(text.replaceAll("{run}", random())) as { cases: Case[] };
    const one = cases.cases[index] as Case;
    const client = clientOf(one);
    if (client) await runAll(client, one.steps);
  };
  serviceTest(name, () => run(clientOf));
  serviceTest(`${name}, by fetch`, () => run(fetchClientOf));
});

/** None for certificates, which `fetch` takes from its runtime, and for bytes, which JSON cannot have. */
function fetchClientOf(one: Case): Limiter | undefined {
  const { service = "plain", domain = "conformance" } = one.client ?? {};
  const targets: Record<string, string> = {
    plain: "TOLLKEEPER_HTTP_ADDR",
    gone: "TOLLKEEPER_GONE_ADDR",
    silent: "TOLLKEEPER_SILENT_ADDR",
  };
  const target = targets[service];
  if (!target || JSON.stringify(one).includes('"hex"')) return undefined;
  return new FetchClient(`http://${variable(target)}`, domain, { log: () => {}, ...policyOf(one) });
}

function policyOf({ client: { on_failure = "allow", timeout_ms = PATIENT_MS } = {} }: Case): Policy {
  return {
    timeoutMs: timeout_ms,
    onFailure: on_failure === "function" ? (_error, [first]) => firstKey(first) === "vip" : on_failure,
  };
}

function clientOf(one: Case): Limiter {
  const { service = "plain", domain } = one.client ?? {};
  const targets: Record<string, string> = {
    plain: "TOLLKEEPER_ADDR",
    tls: "TOLLKEEPER_TLS_ADDR",
    "tls without a certificate": "TOLLKEEPER_TLS_ADDR",
    gone: "TOLLKEEPER_GONE_ADDR",
    silent: "TOLLKEEPER_SILENT_ADDR",
  };
  const target = targets[service];
  assert(target, `the service ${service} is not known`);
  const options = { ...policyOf(one), ...(service.startsWith("tls") && { tls: tls(service === "tls") }) };
  return connect(variable(target), options, domain);
}

function firstKey(descriptor: Descriptor | undefined): Value | undefined {
  return Array.isArray(descriptor) ? (descriptor[0]?.[0] as Value) : undefined;
}

async function runAll(client: Limiter, steps: Step[]): Promise<void> {
  for (const step of steps) await run(client, step);
}

async function run(client: Limiter, step: Step): Promise<void> {
  if (step.raises) {
    await assert.rejects(
      () => perform(client, step),
      (error: Error) => {
        for (const part of step.raises ?? []) assert(error.message.includes(part), `${error.message}: ${part}`);
        return true;
      },
    );
    return;
  }
  const decisions = await perform(client, step);
  const expected = [step.expect ?? []].flat();
  if (Array.isArray(step.expect)) assert.equal(decisions.length, expected.length);
  expected.forEach((one, index) => {
    compare(decisions[index] as Decision, one, JSON.stringify(step));
  });
}

async function perform(client: Limiter, step: Step): Promise<Decision[]> {
  const descriptors = (step.descriptors ?? []).map((one) => descriptorOf(one, step.limit));
  switch (step.method) {
    case "decide":
    case "debit":
    case "part":
    case "refund":
      return [await client[step.method](descriptors, step.hits)];
    case "check":
    case "read":
      return [await client[step.method](descriptors)];
    case "decide_all":
      return client.decideAll(
        (step.calls ?? []).map((call) => ({ ...call, descriptors: call.descriptors.map((one) => descriptorOf(one)) })),
      );
    case "hold":
      return [await hold(client, step, descriptors)];
  }
}

/** The decision about a hold, whose work fails where the step says so. */
async function hold(client: Limiter, step: Step, descriptors: Descriptor[]): Promise<Decision> {
  let decision: Decision | undefined;
  const work = async () => {
    await using hold = await client.hold(descriptors, { estimate: step.estimate, hitsByKind: step.hits_by_kind });
    decision = hold.decision;
    await runAll(client, step.while_open ?? []);
    if (step.renew) assert.equal((await hold.renew(step.renew)).allowed, true);
    hold.used = step.used;
    hold.usedByKind = step.used_by_kind;
    hold.end = step.end;
    if (step.release) await hold.release();
    for (let commit = 1; commit < (step.commits ?? 1); commit++) await hold.commit();
    if (step.fails) throw new Error("the work fails");
  };
  if (step.fails) await assert.rejects(work, /the work fails/);
  else await work();
  assert(decision);
  return decision;
}
