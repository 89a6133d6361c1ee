"""An agent by the official Python SDK of A2A 1.0, in both versions over every binding: python a2a_1_agent.py

"ask" asks for something and takes the next message for the answer, "wait" works until it is cancelled, anything else
comes back as an artifact in two pieces. The address is printed once it listens; it ends with its standard input.
"""

import asyncio

import grpc
from a2a.compat.v0_3.a2a_v0_3_pb2_grpc import add_A2AServiceServicer_to_server as add_old
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.helpers.proto_helpers import new_text_message
from a2a.server.agent_execution import AgentExecutor
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
    Task,
    TaskState,
    TaskStatus,
)
from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server
from starlette.applications import Starlette

from serving import listener, serve


class Echo(AgentExecutor):
    async def execute(self, context, queue):
        text = context.get_user_input()
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
        if text == "ask":
            await updater.requires_input(new_text_message("What shall it be?"))
            return
        if text == "wait":
            await asyncio.Event().wait()
        first, second = text[: len(text) // 2], text[len(text) // 2 :]
        await updater.add_artifact([Part(text=first)], artifact_id="echo", name="echo", last_chunk=False)
        await updater.add_artifact([Part(text=second)], artifact_id="echo", append=True, last_chunk=True)
        await updater.complete()

    async def cancel(self, context, queue):
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


async def main():
    bound, address = listener()
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    pairs = [
        (f"{address}/rpc", "JSONRPC"),
        (address, "HTTP+JSON"),
        (f"127.0.0.1:{port}", "GRPC"),
    ]
    card = AgentCard(
        name="echo",
        description="Says what it is told.",
        version="1",
        capabilities=AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="echo", name="Echo", description="Says what it is told.", tags=["echo"])],
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
            for version in ("1.0", "0.3")
            for url, binding in pairs
        ],
    )
    handler = DefaultRequestHandler(
        agent_executor=Echo(),
        task_store=InMemoryTaskStore(),
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
