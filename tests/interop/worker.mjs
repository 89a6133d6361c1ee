// A worker of clients/typescript. Appends a line to a file for each activity that it begins, and does what the input says.

import { appendFileSync } from "node:fs";
import { Failure, Worker } from "../../clients/typescript/index.js";

const [tally, name] = process.argv.slice(2);
const worker = new Worker({ name, concurrency: 4 });
const note = (text) => appendFileSync(tally, `${text}\n`);

worker.step("jobs", async (input, activity) => {
  note(activity.idempotencyKey);
  if (input.what === "fail-once" && activity.attempt === 0) {
    throw new Failure("busy", "not yet", { retryable: true });
  }
  if (input.what === "break") throw new Error("the machine is on fire");
  if (input.what === "wait") {
    await activity.report({ waits: true });
    // The answer to the report may have said so already.
    if (!activity.signal.aborted) {
      await new Promise((resolve) => activity.signal.addEventListener("abort", resolve));
    }
    note("cancelled True");
    return {};
  }
  if (input.what === "large") return { n: "x".repeat(12_000_000) };
  if (input.what === "signals") {
    for (let n = 0; n < 200; n += 1) process.kill(process.pid, "SIGTERM");
  }
  await new Promise((resolve) => setTimeout(resolve, 20));
  return { n: input.n };
});

try {
  await worker.run();
} catch (error) {
  note(`${error.name} ${error.status}`);
  throw error;
}
note(`${name} has stopped`);
