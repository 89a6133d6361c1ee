"""A gRPC channel that presents a key, for the journeys of both SDKs."""

import grpc


def with_key(details, key):
    metadata = [*(details.metadata or ()), ("authorization", f"Bearer {key}")]
    return details._replace(metadata=metadata)


class Once(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, key):
        self.key = key

    async def intercept_unary_unary(self, call, details, request):
        return await call(with_key(details, self.key), request)


class Streamed(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, key):
        self.key = key

    async def intercept_unary_stream(self, call, details, request):
        return await call(with_key(details, self.key), request)


def channels(key):
    return lambda url: grpc.aio.insecure_channel(url, interceptors=[Once(key), Streamed(key)])
