"""A crew of agents as one task of A2A 1.0, as a2a-sdk 1.x sees its stream.

    a2a_1_crew.py BASE_URL API_KEY

The workflow is `research-crew` of examples/research-crew. Prints what the stream tells of each handoff, one JSON
document a line, and approves the report when it is asked.
"""

import asyncio
import json
import sys

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers import get_artifact_text, new_data_part
from a2a.types import Message, Role, SendMessageRequest, TaskState
from google.protobuf.json_format import MessageToDict

BASE_URL, API_KEY = sys.argv[1:3]


def told(event):
    """The handoff that a status update tells of, if it tells of one."""
    if not event.HasField("status_update"):
        return None
    return MessageToDict(event.status_update.metadata).get("openwop", {}).get("handoff")


async def follow(client, message):
    """Sends a message and reads the stream to its end: the task, its state, and the texts of its artifacts."""
    task, state, artifacts = None, None, []
    async for event in client.send_message(SendMessageRequest(message=message)):
        if event.HasField("task"):
            task, state = event.task, event.task.status.state
        if event.HasField("status_update"):
            state = event.status_update.status.state
        if event.HasField("artifact_update"):
            artifacts.append(get_artifact_text(event.artifact_update.artifact))
        handoff = told(event)
        if handoff:
            print(json.dumps(handoff))
    return task, state, artifacts


async def main():
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {API_KEY}"}, timeout=60) as http:
        card = await A2ACardResolver(http, BASE_URL).get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=True)).create(card)
        subject = new_data_part({"subject": "mechanical watches"})
        asked = Message(message_id="crew-1", role=Role.ROLE_USER, parts=[subject])
        asked.metadata.update({"openwop.workflowId": "research-crew"})
        task, state, _ = await follow(client, asked)
        assert state == TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.Name(state)
        approval = Message(
            message_id="crew-2", role=Role.ROLE_USER, task_id=task.id, context_id=task.context_id,
            parts=[new_data_part({"approve": True})],
        )
        _, state, artifacts = await follow(client, approval)
        assert state == TaskState.TASK_STATE_COMPLETED, TaskState.Name(state)
        assert any("700 years" in text for text in artifacts), artifacts


asyncio.run(asyncio.wait_for(main(), 90))
