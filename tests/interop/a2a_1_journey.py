"""The main journey with the official Python SDK of A2A 1.0, which speaks 0.3 too:
python a2a_1_journey.py BASE_URL API_KEY SKILL BINDING RECEIVER VERSION

SKILL names a workflow with one approval gate and an artifact after it; of the card's interfaces, only the one of
BINDING and VERSION is used. Receivers of pushes are below the address RECEIVER, and what they have to hear is not
judged here. Exits non-zero at the first surprise.
"""

import asyncio
import json
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types.a2a_pb2 import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import TaskNotFoundError
from google.protobuf.json_format import MessageToDict

from grpc_channel import channels

BASE, KEY = sys.argv[1].rstrip("/"), sys.argv[2]
SKILL, BINDING, RECEIVER, VERSION = sys.argv[3:7]


def expect(claim, what):
    if not claim:
        raise SystemExit(f"1.0: not so: {what}")


def message(text, task_id=None, context_id=None, receiver=None):
    made = Message(
        message_id=str(uuid.uuid4()),
        role=Role.ROLE_USER,
        parts=[Part(text=text)],
        task_id=task_id or "",
        context_id=context_id or "",
    )
    if not task_id:
        made.metadata.update({"skillId": SKILL})
    configuration = SendMessageConfiguration(task_push_notification_config=receiver)
    return SendMessageRequest(message=made, configuration=configuration)


def receiver(way, name, task_id=None):
    return TaskPushNotificationConfig(
        task_id=task_id,
        id=name,
        url=f"{RECEIVER}/{way}/{name}",
        token=name,
        authentication=AuthenticationInfo(scheme="Bearer", credentials=name),
    )


async def is_refused(refused):
    try:
        await refused
    except Exception as error:
        print(f"  refused: {type(error).__name__}: {error}")
    else:
        raise SystemExit("1.0: not so: it is refused")


async def is_missing(client):
    """A task that is not there is known as such, whichever the binding and version."""
    try:
        await client.get_task(GetTaskRequest(id="run_" + "0" * 32))
    except TaskNotFoundError as error:
        expect("task not found" in str(error), f"it is said: {error}")
    else:
        raise SystemExit("1.0: not so: no task is not found")


async def push(client, way, task_id):
    """Another receiver for a task that waits, and one that is removed again."""
    # The SDK neither lists nor removes over HTTP+JSON in 0.3.
    can_remove = (BINDING, VERSION) != ("HTTP+JSON", "0.3")
    later = ("set", "removed") if can_remove else ("set",)
    for name in later:
        set_now = await client.create_task_push_notification_config(receiver(way, name, task_id))
        expect(set_now.url == f"{RECEIVER}/{way}/{name}", f"{name} is set")
    for name in ("sent", *later):
        wanted = GetTaskPushNotificationConfigRequest(task_id=task_id, id=name)
        shown = await client.get_task_push_notification_config(wanted)
        expect((shown.id, shown.url) == (name, f"{RECEIVER}/{way}/{name}"), f"{name} is there")
        expect(not shown.token and not shown.authentication.credentials, "its secrets are not shown")
    if not can_remove:
        return
    wanted = ListTaskPushNotificationConfigsRequest(task_id=task_id)
    listed = await client.list_task_push_notification_configs(wanted)
    expect(sorted(config.id for config in listed.configs) == ["removed", "sent", "set"], "all are listed")
    gone = DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="removed")
    await client.delete_task_push_notification_config(gone)
    await is_refused(
        client.get_task_push_notification_config(
            GetTaskPushNotificationConfigRequest(task_id=task_id, id="removed")
        )
    )


def short(event):
    kind = event.WhichOneof("payload")
    value = getattr(event, kind)
    if kind == "artifact_update":
        return f"artifact {value.artifact.artifact_id}"
    return f"{kind} {TaskState.Name(value.status.state)}"


async def run(streaming, http, card):
    def made(streams):
        config = ClientConfig(
            streaming=streams,
            httpx_client=http,
            grpc_channel_factory=channels(KEY),
            supported_protocol_bindings=[BINDING],
        )
        return ClientFactory(config).create(card)

    client = made(streaming)
    # A client that does not stream may not subscribe either, so the observer is another one.
    observer = made(True)

    way = "stream" if streaming else "send"

    async def send(request):
        events = [event async for event in client.send_message(request)]
        print(f"  {way}:", ", ".join(short(event) for event in events))
        return events

    events = await send(message("A brief for the launch of Acme.", receiver=receiver(way, "sent")))
    expect(events[0].WhichOneof("payload") == "task", "a task comes first")
    task_id, context_id = events[0].task.id, events[0].task.context_id
    expect(task_id and context_id, "the task has an id and a context")
    last = events[-1]
    status = last.task.status if last.HasField("task") else last.status_update.status
    expect(status.state == TaskState.TASK_STATE_INPUT_REQUIRED, "the gate asks")
    about = last.task.metadata if last.HasField("task") else last.status_update.metadata
    about = MessageToDict(about)["openwop"]
    expect(about["interrupt"]["kind"] == "approval", "an approval is asked for")

    await is_missing(client)
    task = await client.get_task(GetTaskRequest(id=task_id))
    expect(task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED, "the task is kept")
    expect(task.status.message.parts[0].text, "the agent says what it asks")
    await push(client, way, task_id)

    # A subscription opened while the task waits sees it go on.
    seen = []
    subscribed = asyncio.Event()

    async def follow():
        async for event in observer.subscribe(SubscribeToTaskRequest(id=task_id)):
            seen.append(event)
            subscribed.set()

    follower = asyncio.create_task(follow())
    await asyncio.wait_for(subscribed.wait(), 20)
    events = await send(message("approve", task_id, context_id))
    await asyncio.wait_for(follower, 20)
    print("  subscription:", ", ".join(short(event) for event in seen))
    expect(seen[0].WhichOneof("payload") == "task", "a subscription begins with the task")
    expect(short(seen[-1]) == "status_update TASK_STATE_COMPLETED", "a subscription sees the end")
    expect(any(event.HasField("artifact_update") for event in seen), "a subscription sees the artifact")

    done = await client.get_task(GetTaskRequest(id=task_id))
    expect(done.status.state == TaskState.TASK_STATE_COMPLETED, "the task is completed")
    expect(done.artifacts and done.artifacts[-1].parts[0].text, "there is an artifact")
    expect([entry.role for entry in done.history][-1] == Role.ROLE_USER, "the history ends with the answer")
    expect(len(done.history) >= 3, "the history holds the question")
    expect("interrupt" not in MessageToDict(done.metadata)["openwop"], "nothing is asked any more")

    if VERSION == "1.0":  # the SDK lists no tasks in 0.3
        listed = await client.list_tasks(ListTasksRequest(context_id=context_id, include_artifacts=True))
        expect([task.id for task in listed.tasks] == [task_id], "the context lists the task")
        expect(listed.tasks[0].artifacts and listed.total_size == 1, "the list holds what was asked for")

    events = await send(message("Another brief."))
    other = events[0].task.id
    cancelled = await client.cancel_task(CancelTaskRequest(id=other))
    expect(cancelled.status.state == TaskState.TASK_STATE_CANCELED, "a waiting task is cancelled")
    await is_refused(client.cancel_task(CancelTaskRequest(id=other)))
    await is_refused(client.get_task(GetTaskRequest(id="run_00000000000000000000000000000000")))


async def main():
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        card = await A2ACardResolver(http, BASE).get_agent_card()
        expect(SKILL in [skill.id for skill in card.skills], f"the card names {SKILL}")
        versions = [interface.protocol_version for interface in card.supported_interfaces]
        expect(versions[0] == "1.0", "1.0 is preferred")
        print("card:", card.name, json.dumps(versions))
        mine = [
            interface
            for interface in card.supported_interfaces
            if (interface.protocol_binding, interface.protocol_version) == (BINDING, VERSION)
        ]
        expect(len(mine) == 1, f"the card names {BINDING} {VERSION} once")
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(mine)
        await run(True, http, card)
        await run(False, http, card)
    print(f"{VERSION} journey ok over {BINDING}")


asyncio.run(main())
