// The services that tests run against, by the environment variables of ../../conformance/README.md.
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { after, test } from "node:test";
import { Client, type ClientOptions } from "tollkeeper";

/** Long enough for a busy machine. */
export const PATIENT_MS = 10_000;

export const random: () => string = randomUUID;

/** The value of a variable that the tests of the repository set. */
export function variable(name: string): string {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set; clients/conformance/README.md describes it`);
  return value;
}

/** A test that needs the services. */
export function serviceTest(name: string, run: () => Promise<void>): void {
  const skip = process.env.TOLLKEEPER_ADDR ? false : "TOLLKEEPER_ADDR is not set";
  test(name, { skip }, run);
}

/** A client that is closed after the tests of the file. */
export function connect(target: string, options: ClientOptions = {}, domain = "conformance"): Client {
  const client = new Client(target, domain, { timeoutMs: PATIENT_MS, log: () => {}, ...options });
  after(() => client.close());
  return client;
}

/** An address at which nothing listens. */
export async function goneAddress(): Promise<string> {
  const port = await freePort();
  return `127.0.0.1:${port}`;
}

/** An address at which connections get no answer. */
export async function silentAddress(): Promise<string> {
  const server = createServer((socket) => socket.unref()).listen(0, "127.0.0.1");
  await once(server, "listening");
  server.unref();
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
  const address = server.address();
  await new Promise((closed) => server.close(closed));
  if (address === null || typeof address === "string") throw new Error("a port");
  return address.port;
}

export function tls(withCertificate: boolean): ClientOptions["tls"] & object {
  const file = (name: string) => readFileSync(variable(name));
  const certificate = withCertificate ? { cert: file("TOLLKEEPER_CERT"), key: file("TOLLKEEPER_KEY") } : {};
  return { ca: file("TOLLKEEPER_CA"), serverName: "localhost", ...certificate };
}
