"""An agent by the official Python SDK of A2A 0.3 over every binding: python a2a_03_agent.py

"ask" asks for something and takes the next message for the answer, "wait" works until it is cancelled, anything else
comes back as an artifact in two pieces. The address is printed once it listens; it ends with its standard input.
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
    Part,
    TextPart,
)
from a2a.utils import new_agent_text_message, new_task
from starlette.routing import Route

from serving import listener, serve


class Echo(AgentExecutor):
    async def execute(self, context, queue):
        text = context.get_user_input()
        task = context.current_task
        if task is None:
            task = new_task(context.message)
            await queue.enqueue_event(task)
        updater = TaskUpdater(queue, task.id, task.context_id)
        await updater.start_work()
        if text == "ask":
            question = new_agent_text_message("What shall it be?", task.context_id, task.id)
            await updater.requires_input(question, final=True)
            return
        while text == "wait":
            # A subscription to this SDK is told nothing but what happens after it.
            await asyncio.sleep(0.05)
            await updater.start_work()
        pieces = text[: len(text) // 2], text[len(text) // 2 :]
        first, second = ([Part(root=TextPart(text=piece))] for piece in pieces)
        await updater.add_artifact(first, artifact_id="echo", name="echo", last_chunk=False)
        await updater.add_artifact(second, artifact_id="echo", append=True, last_chunk=True)
        await updater.complete()

    async def cancel(self, context, queue):
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


async def main():
    bound, address = listener()
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    card = AgentCard(
        name="echo",
        description="Says what it is told.",
        version="1",
        protocol_version="0.3.0",
        url=f"{address}/rpc",
        preferred_transport="JSONRPC",
        additional_interfaces=[
            AgentInterface(url=address, transport="HTTP+JSON"),
            AgentInterface(url=f"127.0.0.1:{port}", transport="GRPC"),
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="echo", name="Echo", description="Says what it is told.", tags=["echo"])],
        supports_authenticated_extended_card=True,
    )
    handler = DefaultRequestHandler(
        agent_executor=Echo(),
        task_store=InMemoryTaskStore(),
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
