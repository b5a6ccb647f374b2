import express from "express";
import { Client } from "tollkeeper";
import { rateLimit } from "tollkeeper/express";

const limiter = new Client("localhost:8081", "example");
const app = express();
// The function returns what to limit; undefined lets a request pass.
app.use(
  rateLimit(limiter, (request) => (request.path === "/health" ? undefined : { user: request.get("x-user") ?? "" })),
);
app.get("/", (_request, response) => {
  response.send("Hello\n");
});
app.listen(3000);
