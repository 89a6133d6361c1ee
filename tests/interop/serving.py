"""A server on loopback for the agents of both SDKs: prints its address, and ends with its standard input."""

import asyncio
import socket
import sys

import uvicorn


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
    bound.bind(("127.0.0.1", 0))
    bound.listen()
    return bound, f"http://127.0.0.1:{bound.getsockname()[1]}"
