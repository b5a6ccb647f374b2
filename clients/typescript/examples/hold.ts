import { Client } from "tollkeeper";

const budget = new Client("localhost:8081", "llm", { onFailure: "deny" });

async function complete(user: string, prompt: string): Promise<string> {
  await using hold = await budget.hold({ user }, { estimate: 400 });
  if (!hold.allowed) return `try again in ${hold.decision.retryAfterSeconds ?? 1} s`;
  const { text, tokens } = await model(prompt);
  hold.used = tokens;
  return text;
}

async function model(prompt: string) {
  return { text: `an answer to: ${prompt}`, tokens: 42 };
}

console.log(await complete("alice", "Why is the sky blue?"));
