// Decides a call for each line of stdin, such as user=alice or path=/login,user=alice:
//
//   echo user=alice | node main.ts localhost:8081 example [TIMEOUT_MS]
//
// Node 22.18 or newer runs it as it is.
import { createInterface } from "node:readline";
import { Client, type Decision, type Descriptor } from "tollkeeper";

function descriptor(line: string): Descriptor {
  return line.split(",").map((entry) => {
    const [key, ...value] = entry.split("=");
    return [key, value.join("=")] as const;
  });
}

function describe(decision: Decision): string {
  const verdict = decision.allowed ? "allowed" : "denied";
  if (decision.failed) return `${verdict}, no answer`;
  if (decision.limit === undefined) return `${verdict}, no limit`;
  const left = `${decision.remaining} of ${decision.limit} left, resets in ${Math.round(decision.resetSeconds)} s`;
  const headers = Object.entries(decision.headers()).map(([name, value]) => `; ${name}: ${value}`);
  return `${verdict}, ${left}${headers.join("")}`;
}

const [target, domain, timeoutMs = "50"] = process.argv.slice(2);
const client = new Client(target, domain, { timeoutMs: Number(timeoutMs) });
for await (const line of createInterface({ input: process.stdin })) {
  console.log(describe(await client.decide(descriptor(line))));
}
await client.close();
