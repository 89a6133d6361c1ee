// An agent by the official JavaScript SDK of A2A 1.0, in both versions over every binding: node agent.mjs [FOLDER]
//
// It does what behaviours.json says, and "wait" works until it is cancelled. Its tasks are kept in the folder if there
// is one. The address is printed once it listens; it ends with its standard input.

import { randomUUID } from "node:crypto";

import { AgentCard, Message, Role, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent } from "@a2a-js/sdk";
import { LegacyA2AService, legacyGrpcService } from "@a2a-js/sdk/compat/v0_3/server/grpc";
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore, ServerCallContext, UnauthenticatedUser } from "@a2a-js/sdk/server";
import { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } from "@a2a-js/sdk/server/express";
import { A2AService, grpcService } from "@a2a-js/sdk/server/grpc";
import { Server, ServerCredentials } from "@grpc/grpc-js";
import express from "express";

import { FOLDER, HOST, endWithInput, kept, listen, pause, saidIn, steps, write } from "./script.mjs";

const textOf = (message) => message.parts.map((part) => part.content.value).join("\n");
const says = (text) => ({ messageId: randomUUID(), role: "ROLE_AGENT", parts: [{ text }] });

/** The tasks that work until they are cancelled, and what ends them. */
const waiting = new Map();

class Actor {
  async execute({ userMessage, taskId, contextId, task }, bus) {
    const of = { taskId, contextId };
    const round = steps(saidIn(task?.history ?? [], userMessage, ({ role }) => role === Role.ROLE_USER, textOf));
    if (round[0].message) {
      bus.publish(AgentEvent.message(Message.fromJSON({ ...says(round[0].message), contextId })));
      return bus.finished();
    }
    const status = (state, text) =>
      bus.publish(
        AgentEvent.statusUpdate(
          TaskStatusUpdateEvent.fromJSON({
            ...of,
            status: {
              state: `TASK_STATE_${state.replace("-", "_").toUpperCase()}`,
              message: text && says(text),
              timestamp: new Date().toISOString(),
            },
          }),
        ),
      );
    const begun = task ?? Task.fromJSON({ id: taskId, contextId, status: { state: "TASK_STATE_SUBMITTED" } });
    if (!task) begun.history = [userMessage];
    bus.publish(AgentEvent.task(begun));
    status("working");
    for (const step of round) {
      if (step.pause) await pause(step.pause);
      else if (step.wait) await new Promise((ended) => waiting.set(taskId, ended));
      else if (step.state) status(step.state, step.says);
      else {
        const { artifact: artifactId, name, text, data, append, last } = step;
        const parts = [data ? { data } : { text }];
        const update = { ...of, artifact: { artifactId, name, parts }, append, lastChunk: last };
        bus.publish(AgentEvent.artifactUpdate(TaskArtifactUpdateEvent.fromJSON(update)));
      }
    }
    bus.finished();
  }

  async cancelTask(taskId, bus) {
    const status = { state: "TASK_STATE_CANCELED", timestamp: new Date().toISOString() };
    bus.publish(AgentEvent.statusUpdate(TaskStatusUpdateEvent.fromJSON({ taskId, status })));
    waiting.get(taskId)?.();
    waiting.delete(taskId);
    bus.finished();
  }
}

/** Tasks that outlive the process. */
class Kept extends InMemoryTaskStore {
  async restore() {
    const context = new ServerCallContext({ user: new UnauthenticatedUser() });
    for (const task of kept("tasks")) await super.save(Task.fromJSON(task), context);
  }

  async save(task, context) {
    await super.save(task, context);
    if (FOLDER) write(`tasks/${task.id}.json`, JSON.stringify(Task.toJSON(task)));
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
const pairs = [
  [`${address}/rpc`, "JSONRPC"],
  [`${address}/rest`, "HTTP+JSON"],
  [`${HOST}:${grpc}`, "GRPC"],
];
const card = AgentCard.fromJSON({
  name: "actor",
  description: "Does what it is told.",
  version: "1",
  capabilities: { streaming: true, pushNotifications: false },
  defaultInputModes: ["text/plain"],
  defaultOutputModes: ["text/plain"],
  skills: [{ id: "act", name: "Act", description: "Does what it is told.", tags: ["act"] }],
  supportedInterfaces: ["1.0", "0.3"].flatMap((protocolVersion) =>
    pairs.map(([url, protocolBinding]) => ({ url, protocolBinding, protocolVersion })),
  ),
});
const tasks = new Kept();
await tasks.restore();
const requestHandler = new DefaultRequestHandler(card, tasks, new Actor());
const options = { requestHandler, userBuilder: UserBuilder.noAuthentication, legacyCompat: { enabled: true } };
app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: requestHandler }));
app.use("/rpc", jsonRpcHandler(options));
app.use("/rest", restHandler(options));
server.addService(A2AService, grpcService(options));
server.addService(LegacyA2AService, legacyGrpcService(options));
console.log(address);
endWithInput();
