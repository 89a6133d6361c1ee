// What script.py is for agents in Python: the steps of behaviours.json, and what an agent keeps over its restarts.

import { existsSync, mkdirSync, readFileSync, readdirSync, renameSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

const BEHAVIOURS = JSON.parse(readFileSync(new URL("behaviours.json", import.meta.url)));
const ECHO = [[{ artifact: "echo", name: "echo", halves: true }, { state: "completed" }]];

export const FOLDER = process.argv[2];

// Nobody connects from this address, so no client takes the port of an agent that is away.
export const HOST = FOLDER ? "127.0.0.2" : "127.0.0.1";

/** The steps of the round that the last of the messages begins, given the texts of all messages to the task. */
export function steps(said) {
  const rounds = BEHAVIOURS[said[0].split(/\s+/)[0]] ?? ECHO;
  return rounds[Math.min(said.length, rounds.length) - 1].flatMap((step) => {
    if (step.halves) {
      const text = said.at(-1);
      const half = Math.floor(text.length / 2);
      return [
        { ...step, text: text.slice(0, half), last: false },
        { ...step, text: text.slice(half), append: true, last: true },
      ];
    }
    return [step.answers ? { ...step, text: said.slice(1).join(" ") } : step];
  });
}

/** The texts of all messages to a task, of which the SDK may know the last one already. */
export function saidIn(history, message, isOfUser, textOf) {
  const said = new Map(history.filter(isOfUser).map((one) => [one.messageId, one]));
  said.set(message.messageId, message);
  return [...said.values()].map(textOf);
}

/** Writes a file that is there wholly or not at all, whenever the process is killed. */
export function write(name, text) {
  const path = join(FOLDER, name);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(`${path}.new`, text);
  renameSync(`${path}.new`, path);
}

export function kept(folder) {
  const path = join(FOLDER ?? "", folder);
  if (!FOLDER || !existsSync(path)) return [];
  const names = readdirSync(path).filter((name) => name.endsWith(".json"));
  return names.map((name) => JSON.parse(readFileSync(join(path, name))));
}

/** Listens at the port that a listener of this name had before, or at any. */
export async function listen(name, bind) {
  const file = FOLDER && join(FOLDER, `${name}.port`);
  const before = file && existsSync(file) ? Number(readFileSync(file, "utf8")) : 0;
  const port = await bind(HOST, before);
  if (FOLDER) write(`${name}.port`, String(port));
  return port;
}

export const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** Ends the process with its standard input. */
export function endWithInput() {
  process.stdin.resume().on("end", () => process.exit(0));
}
