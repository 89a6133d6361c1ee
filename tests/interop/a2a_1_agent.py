"""An agent by the official Python SDK of A2A 1.0, in both versions over every binding:
python a2a_1_agent.py [FOLDER]

It does what behaviours.json says, and "wait" works until it is cancelled. Its tasks are kept in the folder if there is
one. The address is printed once it listens; it ends with its standard input.
"""

import asyncio

import grpc
from a2a.compat.v0_3.a2a_v0_3_pb2_grpc import add_A2AServiceServicer_to_server as add_old
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.helpers.proto_helpers import get_message_text, new_text_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import (
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server
from google.protobuf.json_format import MessageToJson, Parse, ParseDict
from google.protobuf.struct_pb2 import Value
from starlette.applications import Starlette

import script
from serving import listen_grpc, listener, serve


def said_in(context):
    """The texts of all messages to the task."""
    history = context.current_task.history if context.current_task else []
    said = {message.message_id: message for message in history if message.role == Role.ROLE_USER}
    said[context.message.message_id] = context.message
    return [get_message_text(message) for message in said.values()]


def part(step):
    if "data" in step:
        return Part(data=ParseDict(step["data"], Value()))
    return Part(text=step["text"])


class Actor(AgentExecutor):
    async def execute(self, context, queue):
        said = said_in(context)
        steps = list(script.steps(said))
        if "message" in steps[0]:
            await queue.enqueue_event(new_text_message(steps[0]["message"], context_id=context.context_id))
            return
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        if context.current_task is None:
            await queue.enqueue_event(
                Task(
                    id=context.task_id,
                    context_id=context.context_id,
                    status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
                    history=[context.message],
                )
            )
        await updater.start_work()
        for step in steps:
            if "pause" in step:
                await asyncio.sleep(step["pause"] / 1000)
            elif "wait" in step:
                await asyncio.Event().wait()
            elif "state" in step:
                state = TaskState.Value("TASK_STATE_" + step["state"].replace("-", "_").upper())
                says = new_text_message(step["says"]) if "says" in step else None
                await updater.update_status(state, says)
            else:
                await updater.add_artifact(
                    [part(step)],
                    artifact_id=step["artifact"],
                    name=step["name"],
                    append=step.get("append"),
                    last_chunk=step.get("last"),
                )

    async def cancel(self, context, queue):
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


class Kept(InMemoryTaskStore):
    """Tasks that outlive the process."""

    async def restore(self):
        for text in script.kept("tasks/*.json"):
            await super().save(Parse(text, Task()), ServerCallContext())

    async def save(self, task, context):
        await super().save(task, context)
        if script.FOLDER:
            script.write(f"tasks/{task.id}.json", MessageToJson(task))


async def main():
    bound, address = listener()
    server = grpc.aio.server()
    pairs = [
        (f"{address}/rpc", "JSONRPC"),
        (address, "HTTP+JSON"),
        (listen_grpc(server), "GRPC"),
    ]
    card = AgentCard(
        name="actor",
        description="Does what it is told.",
        version="1",
        capabilities=AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="act", name="Act", description="Does what it is told.", tags=["act"])],
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
            for version in ("1.0", "0.3")
            for url, binding in pairs
        ],
    )
    tasks = Kept()
    await tasks.restore()
    handler = DefaultRequestHandler(
        agent_executor=Actor(),
        task_store=tasks,
        agent_card=card,
        extended_agent_card=card,
        push_config_store=InMemoryPushNotificationConfigStore(),
    )
    add_A2AServiceServicer_to_server(GrpcHandler(handler), server)
    add_old(CompatGrpcHandler(handler), server)
    await server.start()
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=True),
        *create_rest_routes(handler, enable_v0_3_compat=True),
    ]
    await serve(Starlette(routes=routes), address, bound)
    await server.stop(None)


asyncio.run(main())
