// The main journey with the official JavaScript SDK of A2A 0.3:
// node journey.mjs BASE_URL API_KEY SKILL TRANSPORT RECEIVER
//
// SKILL names a workflow with one approval gate and an artifact after it, TRANSPORT one of those of the card. Receivers
// of pushes are below the address RECEIVER, and what they have to hear is not judged here. Exits non-zero at the first
// surprise.

import { randomUUID } from "node:crypto";
import {
  ClientFactory,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
  RestTransportFactory,
} from "@a2a-js/sdk/client";
import { GrpcTransportFactory } from "@a2a-js/sdk/client/grpc";

const [base, key, skill, transport, receivers] = process.argv.slice(2);
const options = { serviceParameters: { authorization: `Bearer ${key}` } };

function expect(claim, what) {
  if (!claim) throw new Error(`JavaScript 0.3 over ${transport}: not so: ${what}`);
}

async function within(seconds, promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} in ${seconds} s`)), seconds * 1000);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

function message(part, taskId, contextId) {
  const made = { kind: "message", messageId: randomUUID(), role: "user", parts: [part] };
  if (taskId) return { message: { ...made, taskId, contextId }, configuration: { blocking: true } };
  return { message: { ...made, metadata: { "openwop.workflowId": skill } }, configuration: { blocking: true } };
}

function receiver(name) {
  const authentication = { schemes: ["Bearer"], credentials: name };
  return { id: name, url: `${receivers}/${name}`, token: name, authentication };
}

const text = (words) => ({ kind: "text", text: words });

function short(event) {
  if (event.kind === "artifact-update") return `artifact ${event.artifact.artifactId}`;
  return `${event.kind} ${event.status.state}${event.final ? " final" : ""}`;
}

async function all(events) {
  const seen = [];
  for await (const event of events) seen.push(event);
  return seen;
}

async function refused(what, name, call) {
  try {
    await call();
  } catch (error) {
    console.log(`  refused: ${error.constructor.name}: ${error.message}`);
    expect(error.constructor.name.startsWith(name), `${what} is a ${name}`);
    return;
  }
  expect(false, `${what} is refused`);
}

// Another receiver for a task that waits, and one that is removed again.
async function push(client, id) {
  for (const name of ["set", "removed"]) {
    const wanted = { taskId: id, pushNotificationConfig: receiver(name) };
    const set = await client.setTaskPushNotificationConfig(wanted, options);
    expect(set.pushNotificationConfig.url === `${receivers}/${name}`, `${name} is set`);
  }
  for (const name of ["sent", "set", "removed"]) {
    const wanted = { id, pushNotificationConfigId: name };
    const shown = (await client.getTaskPushNotificationConfig(wanted, options)).pushNotificationConfig;
    expect(shown.id === name && shown.url === `${receivers}/${name}`, `${name} is there`);
    expect(!shown.token && !shown.authentication.credentials, "its secrets are not shown");
  }
  const listed = await client.listTaskPushNotificationConfig({ id }, options);
  const names = listed.map(({ pushNotificationConfig }) => pushNotificationConfig.id);
  expect(names.sort().join() === "removed,sent,set", "all are listed");
  const removed = { id, pushNotificationConfigId: "removed" };
  await client.deleteTaskPushNotificationConfig(removed, options);
  await refused("a removed receiver", "", () => client.getTaskPushNotificationConfig(removed, options));
}

async function run(client) {
  const begin = message(text("A brief for the launch of Acme."));
  begin.configuration.pushNotificationConfig = receiver("sent");
  let events = await all(client.sendMessageStream(begin, options));
  console.log("  stream:", events.map(short).join(", "));
  expect(events[0].kind === "task", "a task comes first");
  const { id, contextId } = events[0];
  expect(short(events.at(-1)) === "status-update input-required final", "the gate asks, and the stream says it ends");
  await push(client, id);

  const seen = [];
  let begun;
  const subscribed = new Promise((resolve) => (begun = resolve));
  const follower = (async () => {
    for await (const event of client.resubscribeTask({ id }, options)) {
      seen.push(event);
      begun();
    }
  })();
  await within(20, Promise.race([subscribed, follower]), "a subscription begins");
  const answer = { kind: "data", data: { approve: true, feedback: "looks good" } };
  const answered = await client.sendMessage(message(answer, id, contextId), options);
  expect(answered.kind === "task" && answered.status.state === "completed", "the answer completes the task");
  await within(20, follower, "a subscription ends with its task");
  console.log("  subscription:", seen.map(short).join(", "));
  expect(seen[0].kind === "task", "a subscription begins with the task");
  expect(short(seen.at(-1)) === "status-update completed final", "a subscription sees the end");
  expect(seen.some((event) => event.kind === "artifact-update"), "a subscription sees the artifact");

  const done = await client.getTask({ id, historyLength: 100 }, options);
  expect(done.status.state === "completed", "the task is completed");
  expect(done.artifacts.at(-1).parts[0].text, "there is an artifact");
  expect(done.history.length >= 3, "the history holds the question");

  const waiting = await client.sendMessage(message(text("Another brief.")), options);
  expect(waiting.status.state === "input-required", "a send waits for the gate");
  const cancelled = await client.cancelTask({ id: waiting.id }, options);
  expect(cancelled.status.state === "canceled", "a waiting task is cancelled");
  await refused("a second cancel", "TaskNotCancelable", () => client.cancelTask({ id: waiting.id }, options));
  const nowhere = "run_00000000000000000000000000000000";
  await refused("an unknown task", "TaskNotFound", () => client.getTask({ id: nowhere }, options));
}

const transports = [new JsonRpcTransportFactory(), new RestTransportFactory(), new GrpcTransportFactory()];
const factory = new ClientFactory({ transports, preferredTransports: [transport] });
const card = await new DefaultAgentCardResolver().resolve(base);
expect(card.protocolVersion.startsWith("0.3"), "the card is one of 0.3 too");
expect(card.skills.some((each) => each.id === skill), `the card names ${skill}`);
await run(await factory.createFromAgentCard(card));
console.log(`JavaScript 0.3 journey ok over ${transport}`);
// A channel of gRPC that nobody closes keeps the process.
process.exit(0);
