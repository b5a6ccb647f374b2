import { readFileSync } from "node:fs";
import { Client } from "tollkeeper";

const limiter = new Client("tollkeeper.example:8081", "example", {
  tls: {
    ca: readFileSync("ca.pem"),
    // Only if the service requires a certificate of its clients.
    cert: readFileSync("client.pem"),
    key: readFileSync("client.key"),
  },
});

console.log(await limiter.decide({ user: "alice" }));
