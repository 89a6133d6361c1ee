"""A task of A2A 1.0 over the end of the host's process, as a2a-sdk 1.x sees it.

    a2a_1_restart.py BASE_URL API_KEY start            sends, waits for input-required, prints the task's id
    a2a_1_restart.py BASE_URL API_KEY finish TASK_ID   re-attaches, approves, expects the artifact

The workflow is `approval` of crates/cli/tests/workflows. Between both the host is killed and started again.
"""

import asyncio
import sys

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers import get_artifact_text, new_data_part, new_text_part
from a2a.types import (
    GetTaskRequest,
    Message,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)

BASE_URL, API_KEY, PHASE = sys.argv[1:4]


def state_of(event):
    """The state an event of a stream tells, if it does."""
    if event.HasField("task"):
        return event.task.status.state
    if event.HasField("status_update"):
        return event.status_update.status.state
    return None


async def send(client, message):
    """Sends and reads the stream to its end: the task's id and the states it went through."""
    task_id, states = None, []
    async for event in client.send_message(SendMessageRequest(message=message)):
        if event.HasField("task"):
            task_id = event.task.id
        state = state_of(event)
        if state is not None:
            states.append(state)
    return task_id, states


async def start(client):
    message = Message(message_id="restart-1", role=Role.ROLE_USER, parts=[new_text_part("a draft")])
    message.metadata.update({"openwop.workflowId": "approval"})
    task_id, states = await send(client, message)
    assert states[-1] == TaskState.TASK_STATE_INPUT_REQUIRED, states
    print(task_id)


async def finish(client, task_id):
    task = await client.get_task(GetTaskRequest(id=task_id))
    assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED, task

    states, artifacts, is_attached = [], [], asyncio.Event()

    async def observe():
        async for event in client.subscribe(SubscribeToTaskRequest(id=task_id)):
            is_attached.set()
            if event.HasField("task"):
                artifacts.extend(artifact.artifact_id for artifact in event.task.artifacts)
            if event.HasField("artifact_update"):
                artifacts.append(event.artifact_update.artifact.artifact_id)
            state = state_of(event)
            if state is not None:
                states.append(state)
            if state == TaskState.TASK_STATE_COMPLETED:
                return

    observer = asyncio.create_task(observe())
    attached = asyncio.create_task(is_attached.wait())
    await asyncio.wait([observer, attached], return_when=asyncio.FIRST_COMPLETED)
    assert not observer.done() or observer.exception() is None, observer.exception()

    approval = Message(
        message_id="restart-2", role=Role.ROLE_USER, task_id=task_id, context_id=task.context_id,
        parts=[new_data_part({"approve": True})],
    )
    answered, told = await send(client, approval)
    assert answered == task_id and told[-1] == TaskState.TASK_STATE_COMPLETED, (answered, told)
    await observer
    assert states[-1] == TaskState.TASK_STATE_COMPLETED, states

    # Sent again, the message finds its own effect and nothing happens twice.
    again, _ = await send(client, approval)
    assert again == task_id, again
    done = await client.get_task(GetTaskRequest(id=task_id))
    texts = [get_artifact_text(artifact) for artifact in done.artifacts]
    assert "Approved: Draft of a draft" in texts, texts
    ids = [artifact.artifact_id for artifact in done.artifacts]
    assert len(set(ids)) == len(ids), ids
    assert set(artifacts) == set(ids), (artifacts, ids)
    print("ok")


async def main():
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {API_KEY}"}, timeout=60) as http:
        card = await A2ACardResolver(http, BASE_URL).get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=True)).create(card)
        if PHASE == "start":
            await start(client)
        else:
            await finish(client, sys.argv[4])


asyncio.run(asyncio.wait_for(main(), 90))
