import { Client } from "tollkeeper";
import { shop } from "./shop.ts";

// A busy laptop may need longer than the default of 50 ms.
const limiter = new Client(process.env.TOLLKEEPER ?? "localhost:8081", "shop", { timeoutMs: 1_000 });
const server = shop(limiter).listen(Number(process.env.PORT ?? 8000), "127.0.0.1");
process.on("SIGTERM", () => server.close(() => limiter.close()));
