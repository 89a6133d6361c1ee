"""A task of A2A 0.3 over the end of the host's process, as a2a-sdk 0.3 sees it.

    a2a_03_restart.py BASE_URL API_KEY start            sends, waits for input-required, prints the task's id
    a2a_03_restart.py BASE_URL API_KEY finish TASK_ID   re-attaches, approves, expects the artifact

The workflow is `approval` of crates/cli/tests/workflows. Between both the host is killed and started again.
"""

import asyncio
import sys

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import DataPart, Message, Part, Role, Task, TaskIdParams, TaskQueryParams, TaskState, TextPart

BASE_URL, API_KEY, PHASE = sys.argv[1:4]


async def start(client):
    message = Message(
        message_id="restart-1", role=Role.user, parts=[Part(root=TextPart(text="a draft"))],
        metadata={"openwop.workflowId": "approval"},
    )
    task = None
    async for task, _ in client.send_message(message):
        pass
    assert task.status.state == TaskState.input_required, task
    print(task.id)


async def finish(client, task_id):
    task = await client.get_task(TaskQueryParams(id=task_id))
    assert task.status.state == TaskState.input_required, task

    states, artifacts, is_attached = [], [], asyncio.Event()

    async def observe():
        async for task, update in client.resubscribe(TaskIdParams(id=task_id)):
            is_attached.set()
            states.append(task.status.state)
            artifacts[:] = [artifact.artifact_id for artifact in task.artifacts or []]
            if task.status.state == TaskState.completed:
                return

    observer = asyncio.create_task(observe())
    attached = asyncio.create_task(is_attached.wait())
    await asyncio.wait([observer, attached], return_when=asyncio.FIRST_COMPLETED)
    assert not observer.done() or observer.exception() is None, observer.exception()

    approval = Message(
        message_id="restart-2", role=Role.user, task_id=task_id, context_id=task.context_id,
        parts=[Part(root=DataPart(data={"approve": True}))],
    )
    answered = None
    async for answered, _ in client.send_message(approval):
        pass
    assert answered.id == task_id and answered.status.state == TaskState.completed, answered
    await observer
    assert states[-1] == TaskState.completed, states

    # Sent again, the message finds its own effect and nothing happens twice.
    async for again, _ in client.send_message(approval):
        assert again.id == task_id, again
    done = await client.get_task(TaskQueryParams(id=task_id))
    texts = [part.root.text for artifact in done.artifacts for part in artifact.parts if part.root.kind == "text"]
    assert "Approved: Draft of a draft" in texts, texts
    assert len({artifact.artifact_id for artifact in done.artifacts}) == len(done.artifacts), done.artifacts
    assert set(artifacts) == {artifact.artifact_id for artifact in done.artifacts}, artifacts
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
