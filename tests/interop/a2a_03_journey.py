"""The main journey with the official Python SDK, A2A 0.3:
python a2a_03_journey.py BASE_URL API_KEY SKILL TRANSPORT RECEIVER

SKILL names a workflow with one approval gate and an artifact after it, TRANSPORT one of those of the card. Receivers of
pushes are below the address RECEIVER, and what they have to hear is not judged here. Exits non-zero at the first
surprise.
"""

import asyncio
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientHTTPError, A2AClientJSONRPCError
from a2a.types import (
    DataPart,
    DeleteTaskPushNotificationConfigParams,
    GetTaskPushNotificationConfigParams,
    ListTaskPushNotificationConfigParams,
    Message,
    Part,
    PushNotificationAuthenticationInfo,
    PushNotificationConfig,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TaskState,
    TextPart,
)
from grpc.aio import AioRpcError

from grpc_channel import channels

BASE, KEY = sys.argv[1].rstrip("/"), sys.argv[2]
SKILL, TRANSPORT, RECEIVER = sys.argv[3:6]


def expect(claim, what):
    if not claim:
        raise SystemExit(f"0.3: not so: {what}")


def message(part, task_id=None, context_id=None):
    return Message(
        message_id=str(uuid.uuid4()),
        role=Role.user,
        parts=[Part(root=part)],
        task_id=task_id,
        context_id=context_id,
        metadata=None if task_id else {"openwop.workflowId": SKILL},
    )


def receiver(way, name):
    return PushNotificationConfig(
        id=name,
        url=f"{RECEIVER}/{way}/{name}",
        token=name,
        authentication=PushNotificationAuthenticationInfo(schemes=["Bearer"], credentials=name),
    )


async def is_refused(refused):
    try:
        await refused
    except Exception as error:
        print(f"  refused: {type(error).__name__}: {error}")
    else:
        raise SystemExit("0.3: not so: it is refused")


async def is_missing(client):
    """A task that is not there is known as such, as far as this SDK tells what went wrong."""
    try:
        await client.get_task(TaskQueryParams(id="run_" + "0" * 32))
    except A2AClientJSONRPCError as error:
        told = error.error.code == -32001
    except A2AClientHTTPError as error:
        told = error.status_code == 404
    except AioRpcError as error:
        told = error.details() == "TaskNotFoundError: task not found"
    else:
        told = False
    expect(told, "no task is not found")


async def push(client, http, card, way, task_id):
    """Another receiver for a task that waits, and one that is removed again."""
    for name in ("set", "removed"):
        config = TaskPushNotificationConfig(task_id=task_id, push_notification_config=receiver(way, name))
        set_now = await client.set_task_callback(config)
        expect(set_now.push_notification_config.url == f"{RECEIVER}/{way}/{name}", f"{name} is set")
    for name in ("sent", "set", "removed"):
        wanted = GetTaskPushNotificationConfigParams(id=task_id, push_notification_config_id=name)
        shown = (await client.get_task_callback(wanted)).push_notification_config
        expect((shown.id, shown.url) == (name, f"{RECEIVER}/{way}/{name}"), f"{name} is there")
        expect(not shown.token and not shown.authentication.credentials, "its secrets are not shown")
    # The client of this SDK neither lists nor removes, so that is done by its types, over HTTP.
    listed = await rpc(http, card, "list", ListTaskPushNotificationConfigParams(id=task_id))
    configs = [TaskPushNotificationConfig.model_validate(each) for each in listed]
    names = sorted(config.push_notification_config.id for config in configs)
    expect(names == ["removed", "sent", "set"], "all are listed")
    gone = DeleteTaskPushNotificationConfigParams(id=task_id, push_notification_config_id="removed")
    await rpc(http, card, "delete", gone)
    wanted = GetTaskPushNotificationConfigParams(id=task_id, push_notification_config_id="removed")
    await is_refused(client.get_task_callback(wanted))


async def rpc(http, card, verb, params):
    body = {"jsonrpc": "2.0", "id": 1, "method": f"tasks/pushNotificationConfig/{verb}"}
    body["params"] = params.model_dump(mode="json", by_alias=True, exclude_none=True)
    answer = (await http.post(card.url, json=body)).json()
    expect("error" not in answer, f"{verb}: {answer}")
    return answer["result"]


def short(event):
    task, update = event
    if update is None:
        return f"task {task.status.state.value}"
    if isinstance(update, TaskArtifactUpdateEvent):
        return f"artifact {update.artifact.artifact_id}"
    return f"status {update.status.state.value}{' final' if update.final else ''}"


async def run(streaming, http, card):
    def made(streams, receivers=()):
        config = ClientConfig(
            streaming=streams,
            push_notification_configs=list(receivers),
            httpx_client=http,
            grpc_channel_factory=channels(KEY),
            supported_transports=[TRANSPORT],
            use_client_preference=True,
        )
        return ClientFactory(config).create(card)

    client = made(streaming)
    # A client that does not stream may not subscribe either, so the observer is another one.
    observer = made(True)

    way = "stream" if streaming else "send"
    # What it sends has a receiver along.
    teller = made(streaming, [receiver(way, "sent")])

    async def send(made, by=client):
        events = [event async for event in by.send_message(made)]
        print(f"  {way}:", ", ".join(short(event) for event in events))
        return events

    events = await send(message(TextPart(text="A brief for the launch of Acme.")), teller)
    task = events[-1][0]
    expect(isinstance(task, Task), "a task comes")
    expect(task.status.state == TaskState.input_required, "the gate asks")
    if streaming:
        expect(events[-1][1].final, "the last update says so")
        about = events[-1][1].metadata["openwop"]
    else:
        about = task.metadata["openwop"]
    expect(about["interrupt"]["kind"] == "approval", "an approval is asked for")

    await is_missing(client)
    kept = await client.get_task(TaskQueryParams(id=task.id))
    expect(kept.status.state == TaskState.input_required, "the task is kept")
    await push(client, http, card, way, task.id)

    seen = []
    subscribed = asyncio.Event()

    async def follow():
        async for event in observer.resubscribe(TaskIdParams(id=task.id)):
            seen.append(event)
            subscribed.set()

    follower = asyncio.create_task(follow())
    await asyncio.wait_for(subscribed.wait(), 20)
    answer = DataPart(data={"approve": True, "feedback": "looks good"})
    events = await send(message(answer, task.id, task.context_id))
    expect(events[-1][0].status.state == TaskState.completed, "the answer completes the task")
    await asyncio.wait_for(follower, 20)
    print("  subscription:", ", ".join(short(event) for event in seen))
    expect(seen[0][1] is None, "a subscription begins with the task")
    expect(seen[-1][1].final and seen[-1][0].status.state == TaskState.completed, "it sees the end")
    expect(any(isinstance(event[1], TaskArtifactUpdateEvent) for event in seen), "it sees the artifact")

    done = await client.get_task(TaskQueryParams(id=task.id, history_length=100))
    expect(done.status.state == TaskState.completed, "the task is completed")
    expect(done.artifacts[-1].parts[0].root.text, "there is an artifact")
    expect(len(done.history) >= 3, "the history holds the question")
    expect("interrupt" not in done.metadata["openwop"], "nothing is asked any more")

    events = await send(message(TextPart(text="Another brief.")))
    other = events[-1][0].id
    cancelled = await client.cancel_task(TaskIdParams(id=other))
    expect(cancelled.status.state == TaskState.canceled, "a waiting task is cancelled")
    await is_refused(client.cancel_task(TaskIdParams(id=other)))
    await is_refused(client.get_task(TaskQueryParams(id="run_00000000000000000000000000000000")))


async def main():
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        card = await A2ACardResolver(http, BASE).get_agent_card()
        expect(SKILL in [skill.id for skill in card.skills], f"the card names {SKILL}")
        expect(card.protocol_version.startswith("0.3"), "the card is one of 0.3 too")
        print("card:", card.name, card.protocol_version, card.url)
        await run(True, http, card)
        await run(False, http, card)
    print(f"0.3 journey ok over {TRANSPORT}")


asyncio.run(main())
