// A shop that limits guesses of passwords, and the reports of each user.
import express, { type ErrorRequestHandler, type Express, type Request, type RequestHandler } from "express";
import type { Descriptors, Limiter } from "tollkeeper";
import { rateLimit } from "tollkeeper/express";

// These stand for your accounts, which have hashes in place of passwords and keys.
const passwords = new Map([["alice", "correct-horse"]]);
const users = new Map([["key-of-alice", "alice"]]);

const checkLogin: RequestHandler = (request, response, next) => {
  const { user, password } = request.body ?? {};
  if (typeof user !== "string" || Buffer.byteLength(user) > 100 || typeof password !== "string") {
    response.status(400).send("login: needs a user of at most 100 bytes and a password");
  } else next();
};

const byUserAndAddress = ({ body, ip = "" }: Request): Descriptors => [
  { route: "/login", user: body.user },
  { route: "/login", address: ip },
];

const login: RequestHandler = (request, response) => {
  const { user, password } = request.body;
  if (passwords.get(user) === password) response.send("welcome\n");
  else response.status(401).send("wrong user or password\n");
};

const authenticate: RequestHandler = (request, response, next) => {
  const [, key = ""] = /^bearer (.*)/i.exec(request.get("authorization") ?? "") ?? [];
  response.locals.user = users.get(key);
  if (response.locals.user) next();
  else response.sendStatus(401);
};

const byUser = ({ res }: Request): Descriptors => ({ user: res?.locals.user });

/** Otherwise, each of them would be an error in the log. */
const answerBadRequests: ErrorRequestHandler = (error, _request, response, next) => {
  if (error.status >= 400 && error.status < 500) response.sendStatus(error.status);
  else next(error);
};

export function shop(limiter: Limiter): Express {
  // Without an answer, nobody may guess passwords, and reports stay available.
  const logins = limiter.with({ onFailure: "deny" });
  const app = express();
  app.post("/login", express.urlencoded(), checkLogin, rateLimit(logins, byUserAndAddress), login);
  app.get("/reports", authenticate, rateLimit(limiter, byUser), (_request, response) => {
    response.send(`reports of ${response.locals.user}\n`);
  });
  app.get("/healthz", (_request, response) => {
    response.send("ok\n");
  });
  app.use(answerBadRequests);
  return app;
}
