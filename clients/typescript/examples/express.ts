import express from "express";
import { Client } from "tollkeeper";
import { rateLimit } from "tollkeeper/express";

const limiter = new Client("localhost:8081", "example");
const users = new Map([["Bearer key-of-alice", "alice"]]);
const app = express();
app.use((request, response, next) => {
  response.locals.user = users.get(request.get("authorization") ?? "");
  if (response.locals.user) next();
  else response.sendStatus(401);
});
app.use(rateLimit(limiter, (request) => ({ user: request.res?.locals.user })));
app.get("/", (_request, response) => {
  response.send("Hello\n");
});
app.listen(3000);
