// The main journey with the official JavaScript SDK of A2A 1.0, which speaks 0.3 too:
// node journey.mjs BASE_URL API_KEY SKILL BINDING RECEIVER VERSION
//
// SKILL names a workflow with one approval gate and an artifact after it; of the card's interfaces, only the one of
// BINDING and VERSION is used. Receivers of pushes are below the address RECEIVER, and what they have to hear is not
// judged here. Exits non-zero at the first surprise.

import { randomUUID } from "node:crypto";
import { Role, TaskState } from "@a2a-js/sdk";
import { Client, ClientFactory, JsonRpcTransportFactory, RestTransportFactory } from "@a2a-js/sdk/client";
import { GrpcTransportFactory } from "@a2a-js/sdk/client/grpc";

const [base, key, skill, binding, receivers, version] = process.argv.slice(2);
const options = { serviceParameters: { authorization: `Bearer ${key}` } };

function expect(claim, what) {
  if (!claim) throw new Error(`JavaScript ${version} over ${binding}: not so: ${what}`);
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

function message(text, taskId = "", contextId = "") {
  return {
    tenant: "",
    message: {
      messageId: randomUUID(),
      contextId,
      taskId,
      role: Role.ROLE_USER,
      parts: [{ content: { $case: "text", value: text }, metadata: undefined, filename: "", mediaType: "" }],
      metadata: taskId ? undefined : { skillId: skill },
      extensions: [],
      referenceTaskIds: [],
    },
    configuration: undefined,
    metadata: undefined,
  };
}

function receiver(name, taskId = "") {
  const authentication = { scheme: "Bearer", credentials: name };
  return { tenant: "", taskId, id: name, url: `${receivers}/${name}`, token: name, authentication };
}

function short(event) {
  const { $case: kind, value } = event.payload;
  return kind === "artifactUpdate" ? `artifact ${value.artifact.artifactId}` : `${kind} ${TaskState[value.status.state]}`;
}

async function all(events) {
  const seen = [];
  for await (const event of events) seen.push(event);
  return seen;
}

async function refused(what, call) {
  try {
    await call();
  } catch (error) {
    console.log(`  refused: ${error.constructor.name}: ${error.message}`);
    return;
  }
  expect(false, `${what} is refused`);
}

// Another receiver for a task that waits, and one that is removed again.
async function push(client, taskId) {
  for (const name of ["set", "removed"]) {
    const set = await client.createTaskPushNotificationConfig(receiver(name, taskId), options);
    expect(set.url === `${receivers}/${name}`, `${name} is set`);
  }
  for (const name of ["sent", "set", "removed"]) {
    const shown = await client.getTaskPushNotificationConfig({ tenant: "", taskId, id: name }, options);
    expect(shown.id === name && shown.url === `${receivers}/${name}`, `${name} is there`);
    expect(!shown.token && !shown.authentication.credentials, "its secrets are not shown");
  }
  const wanted = { tenant: "", taskId, pageSize: 0, pageToken: "" };
  const { configs } = await client.listTaskPushNotificationConfig(wanted, options);
  expect(configs.map(({ id }) => id).sort().join() === "removed,sent,set", "all are listed");
  const removed = { tenant: "", taskId, id: "removed" };
  await client.deleteTaskPushNotificationConfig(removed, options);
  await refused("a removed receiver", () => client.getTaskPushNotificationConfig(removed, options));
}

async function run(client) {
  // A stream up to the gate, and another observer from there on.
  const begin = message("A brief for the launch of Acme.");
  begin.configuration = {
    acceptedOutputModes: [],
    taskPushNotificationConfig: receiver("sent"),
    historyLength: undefined,
    returnImmediately: false,
  };
  let events = await all(client.sendMessageStream(begin, options));
  console.log("  stream:", events.map(short).join(", "));
  expect(events[0].payload.$case === "task", "a task comes first");
  const { id, contextId } = events[0].payload.value;
  expect(events.at(-1).payload.value.status.state === TaskState.TASK_STATE_INPUT_REQUIRED, "the gate asks");
  await push(client, id);

  const seen = [];
  let begun;
  const subscribed = new Promise((resolve) => (begun = resolve));
  const follower = (async () => {
    for await (const event of client.resubscribeTask({ tenant: "", id }, options)) {
      seen.push(event);
      begun();
    }
  })();
  await within(20, Promise.race([subscribed, follower]), "a subscription begins");
  events = await all(client.sendMessageStream(message("approve", id, contextId), options));
  console.log("  stream:", events.map(short).join(", "));
  await within(20, follower, "a subscription ends with its task");
  console.log("  subscription:", seen.map(short).join(", "));
  expect(seen[0].payload.$case === "task", "a subscription begins with the task");
  expect(short(seen.at(-1)) === "statusUpdate TASK_STATE_COMPLETED", "a subscription sees the end");
  expect(seen.some((event) => event.payload.$case === "artifactUpdate"), "a subscription sees the artifact");

  const done = await client.getTask({ tenant: "", id, historyLength: undefined }, options);
  expect(done.status.state === TaskState.TASK_STATE_COMPLETED, "the task is completed");
  expect(done.artifacts.at(-1).parts[0].content.value, "there is an artifact");
  expect(done.history.length >= 3, "the history holds the question");

  if (version === "1.0") {
    const listed = await client.listTasks(
      { tenant: "", contextId, status: TaskState.TASK_STATE_UNSPECIFIED, pageToken: "", includeArtifacts: true },
      options,
    );
    expect(listed.tasks.length === 1 && listed.tasks[0].id === id, "the context lists the task");
    expect(listed.tasks[0].artifacts.length === done.artifacts.length, "the list holds what was asked for");
  }

  // Without a stream: a blocking send up to the gate, then a cancel.
  const waiting = await client.sendMessage(message("Another brief."), options);
  const task = waiting.payload?.value ?? waiting;
  expect(task.status.state === TaskState.TASK_STATE_INPUT_REQUIRED, "a send waits for the gate");
  const cancelled = await client.cancelTask({ tenant: "", id: task.id, metadata: undefined }, options);
  expect(cancelled.status.state === TaskState.TASK_STATE_CANCELED, "a waiting task is cancelled");
  await refused("a second cancel", () => client.cancelTask({ tenant: "", id: task.id, metadata: undefined }, options));
  const nowhere = "run_00000000000000000000000000000000";
  await refused("an unknown task", () => client.getTask({ tenant: "", id: nowhere }, options));
}

const both = { legacyCompat: { enabled: true } };
const transports = [new JsonRpcTransportFactory(both), new RestTransportFactory(both), new GrpcTransportFactory(both)];
const factory = new ClientFactory({ transports });
const card = await (await factory.createFromUrl(base)).getAgentCard(options);
expect(card.supportedInterfaces[0].protocolVersion === "1.0", "1.0 is preferred");
const mine = card.supportedInterfaces.filter(
  (each) => each.protocolBinding === binding && each.protocolVersion === version,
);
expect(mine.length === 1, `the card names ${binding} ${version} once`);
const client = await factory.createFromAgentCard({ ...card, supportedInterfaces: mine });
expect(client instanceof Client && client.protocolVersion === version, `the client speaks ${version}`);
await run(client);
console.log(`JavaScript ${version} journey ok over ${binding}`);
// A channel of gRPC that nobody closes keeps the process.
process.exit(0);
