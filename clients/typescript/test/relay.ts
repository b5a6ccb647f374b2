import { connect, createServer, type Server, type Socket } from "node:net";
import { after } from "node:test";
import { freePort, variable } from "./services.js";

/** Forwards connections to the service, until it is stopped. */
export class Relay {
  connections = 0;
  readonly #port: number;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(port: number) {
    this.#port = port;
    this.#server = createServer((socket) => this.#forward(socket));
    after(() => this.stop());
  }

  static async start(): Promise<Relay> {
    const relay = new Relay(await freePort());
    await relay.listen();
    return relay;
  }

  get address(): string {
    return `127.0.0.1:${this.#port}`;
  }

  listen(): Promise<void> {
    return new Promise((listening) => this.#server.listen(this.#port, "127.0.0.1", listening));
  }

  /** Closes all connections, and refuses new ones. */
  stop(): Promise<void> {
    return new Promise((closed) => {
      this.#server.close(() => closed());
      for (const socket of this.#sockets) socket.destroy();
    });
  }

  #forward(client: Socket): void {
    this.connections++;
    const [host = "", port] = variable("TOLLKEEPER_ADDR").split(":");
    const service = connect(Number(port), host);
    for (const [from, to] of [
      [client, service],
      [service, client],
    ] as const) {
      this.#sockets.add(from);
      from.on("data", (data) => to.write(data));
      from.on("error", () => to.destroy());
      from.on("close", () => {
        this.#sockets.delete(from);
        to.destroy();
      });
    }
  }
}
