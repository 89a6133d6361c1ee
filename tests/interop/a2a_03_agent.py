"""An agent by the official Python SDK of A2A 0.3 over every binding: python a2a_03_agent.py [FOLDER]

It does what behaviours.json says, and "wait" works until it is cancelled. Its tasks are kept in the folder if there is
one. The address is printed once it listens; it ends with its standard input.
"""

import asyncio

import grpc
from a2a.grpc.a2a_pb2_grpc import add_A2AServiceServicer_to_server
from a2a.server.agent_execution import AgentExecutor
from a2a.server.apps import A2AStarletteApplication
from a2a.server.apps.rest.rest_adapter import RESTAdapter
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.tasks import (
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    DataPart,
    Part,
    Role,
    Task,
    TaskState,
    TextPart,
)
from a2a.utils import get_message_text, new_agent_text_message, new_task
from starlette.routing import Route

import script
from serving import listen_grpc, listener, serve


def said_in(context):
    """The texts of all messages to the task."""
    history = context.current_task.history or [] if context.current_task else []
    said = {message.message_id: message for message in history if message.role == Role.user}
    said[context.message.message_id] = context.message
    return [get_message_text(message) for message in said.values()]


def part(step):
    return Part(root=DataPart(data=step["data"]) if "data" in step else TextPart(text=step["text"]))


class Actor(AgentExecutor):
    async def execute(self, context, queue):
        steps = list(script.steps(said_in(context)))
        if "message" in steps[0]:
            await queue.enqueue_event(new_agent_text_message(steps[0]["message"], context.context_id))
            return
        task = context.current_task
        if task is None:
            task = new_task(context.message)
            await queue.enqueue_event(task)
        updater = TaskUpdater(queue, task.id, task.context_id)
        await updater.start_work()
        for step in steps:
            if "pause" in step:
                await asyncio.sleep(step["pause"] / 1000)
            while "wait" in step:
                # A subscription to this SDK is told nothing but what happens after it.
                await asyncio.sleep(0.05)
                await updater.start_work()
            if "state" in step:
                says = None
                if "says" in step:
                    says = new_agent_text_message(step["says"], task.context_id, task.id)
                state = TaskState(step["state"])
                await updater.update_status(state, says, final=state != TaskState.working)
            elif "artifact" in step:
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
            await super().save(Task.model_validate_json(text))

    async def save(self, task, context=None):
        await super().save(task, context)
        if script.FOLDER:
            script.write(f"tasks/{task.id}.json", task.model_dump_json())


async def main():
    bound, address = listener()
    server = grpc.aio.server()
    card = AgentCard(
        name="actor",
        description="Does what it is told.",
        version="1",
        protocol_version="0.3.0",
        url=f"{address}/rpc",
        preferred_transport="JSONRPC",
        additional_interfaces=[
            AgentInterface(url=address, transport="HTTP+JSON"),
            AgentInterface(url=listen_grpc(server), transport="GRPC"),
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="act", name="Act", description="Does what it is told.", tags=["act"])],
        supports_authenticated_extended_card=True,
    )
    tasks = Kept()
    await tasks.restore()
    handler = DefaultRequestHandler(
        agent_executor=Actor(),
        task_store=tasks,
        push_config_store=InMemoryPushNotificationConfigStore(),
    )
    add_A2AServiceServicer_to_server(GrpcHandler(card, handler), server)
    await server.start()
    application = A2AStarletteApplication(card, handler, extended_agent_card=card).build(rpc_url="/rpc")
    rest = RESTAdapter(card, handler, extended_agent_card=card)
    for (path, method), endpoint in rest.routes().items():
        application.routes.append(Route(path, endpoint, methods=[method]))
    await serve(application, address, bound)
    await server.stop(None)


asyncio.run(main())
