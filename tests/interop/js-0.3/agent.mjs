// An agent by the official JavaScript SDK of A2A 0.3 over every binding: node agent.mjs [FOLDER]
//
// It does what behaviours.json says, and "wait" works until it is cancelled. Its tasks are kept in the folder if there
// is one. The address is printed once it listens; it ends with its standard input.

import { randomUUID } from "node:crypto";

import { DefaultRequestHandler, InMemoryTaskStore } from "@a2a-js/sdk/server";
import { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } from "@a2a-js/sdk/server/express";
import { A2AService, grpcService } from "@a2a-js/sdk/server/grpc";
import { Server, ServerCredentials } from "@grpc/grpc-js";
import express from "express";

import { FOLDER, HOST, endWithInput, kept, listen, pause, saidIn, steps, write } from "./script.mjs";

const textOf = (message) => message.parts.map((part) => part.text).join("\n");

/** The tasks that work until they are cancelled, and what ends them. */
const waiting = new Map();

class Actor {
  async execute({ userMessage, taskId, contextId, task }, bus) {
    const of = { taskId, contextId };
    const says = (text) => ({
      kind: "message",
      messageId: randomUUID(),
      role: "agent",
      parts: [{ kind: "text", text }],
      ...of,
    });
    const round = steps(saidIn(task?.history ?? [], userMessage, ({ role }) => role === "user", textOf));
    if (round[0].message) {
      bus.publish({ ...says(round[0].message), taskId: undefined });
      return bus.finished();
    }
    const status = (state, text) =>
      bus.publish({
        kind: "status-update",
        ...of,
        status: { state, message: text && says(text), timestamp: new Date().toISOString() },
        final: state !== "working",
      });
    if (!task) {
      bus.publish({ kind: "task", id: taskId, contextId, status: { state: "submitted" }, history: [userMessage] });
    }
    status("working");
    for (const step of round) {
      if (step.pause) await pause(step.pause);
      else if (step.wait) await new Promise((ended) => waiting.set(taskId, ended));
      else if (step.state) status(step.state, step.says);
      else {
        const { artifact: artifactId, name, text, data, append, last } = step;
        const parts = [data ? { kind: "data", data } : { kind: "text", text }];
        bus.publish({ kind: "artifact-update", ...of, artifact: { artifactId, name, parts }, append, lastChunk: last });
      }
    }
    bus.finished();
  }

  async cancelTask(taskId, bus) {
    const status = { state: "canceled", timestamp: new Date().toISOString() };
    bus.publish({ kind: "status-update", taskId, status, final: true });
    waiting.get(taskId)?.();
    waiting.delete(taskId);
    bus.finished();
  }
}

/** Tasks that outlive the process. */
class Kept extends InMemoryTaskStore {
  async restore() {
    for (const task of kept("tasks")) await super.save(task);
  }

  async save(task) {
    await super.save(task);
    if (FOLDER) write(`tasks/${task.id}.json`, JSON.stringify(task));
  }
}

const app = express();
const http = await listen(
  "http",
  (host, port) =>
    new Promise((done) => {
      const server = app.listen(port, host, () => done(server.address().port));
    }),
);
const server = new Server();
const grpc = await listen(
  "grpc",
  (host, port) =>
    new Promise((done, failed) => {
      server.bindAsync(`${host}:${port}`, ServerCredentials.createInsecure(), (error, bound) =>
        error ? failed(error) : done(bound),
      );
    }),
);
const address = `http://${HOST}:${http}`;
const card = {
  name: "actor",
  description: "Does what it is told.",
  version: "1",
  protocolVersion: "0.3.0",
  url: `${address}/rpc`,
  preferredTransport: "JSONRPC",
  additionalInterfaces: [
    { url: `${address}/rest`, transport: "HTTP+JSON" },
    { url: `${HOST}:${grpc}`, transport: "GRPC" },
  ],
  capabilities: { streaming: true, pushNotifications: false },
  defaultInputModes: ["text/plain"],
  defaultOutputModes: ["text/plain"],
  skills: [{ id: "act", name: "Act", description: "Does what it is told.", tags: ["act"] }],
};
const tasks = new Kept();
await tasks.restore();
const requestHandler = new DefaultRequestHandler(card, tasks, new Actor());
const options = { requestHandler, userBuilder: UserBuilder.noAuthentication };
app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: requestHandler }));
app.use("/rpc", jsonRpcHandler(options));
app.use("/rest", restHandler(options));
server.addService(A2AService, grpcService(options));
console.log(address);
endWithInput();
