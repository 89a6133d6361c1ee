"""A server on loopback for the agents of both SDKs: prints its address, and ends with its standard input."""

import asyncio
import socket
import sys

import uvicorn

from script import HOST, keep_port, port


async def serve(application, address, listener):
    config = uvicorn.Config(application, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    print(address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.should_exit = server.force_exit = True
    await running


def listener():
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port("http")))
    bound.listen()
    number = bound.getsockname()[1]
    keep_port("http", number)
    return bound, f"http://{HOST}:{number}"


def listen_grpc(server):
    """Lets a server of gRPC listen, and returns its address."""
    number = server.add_insecure_port(f"{HOST}:{port('grpc')}")
    keep_port("grpc", number)
    return f"{HOST}:{number}"
