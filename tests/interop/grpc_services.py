"""What generic tools of gRPC need, by the libraries of gRPC itself: health and reflection, both public:
python grpc_services.py BASE_URL API_KEY

The descriptors that reflection gives are enough to call a method, and say what the SDK's own say. Exits non-zero at
the first surprise.
"""

import sys

import grpc
from a2a.types import a2a_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

ADDRESS, KEY = sys.argv[1].split("://")[1].rstrip("/"), sys.argv[2]


def expect(claim, what):
    if not claim:
        raise SystemExit(f"gRPC: not so: {what}")


def shape(message):
    """What a message looks like on the wire; how its fields are named in JSON as well."""
    fields = {}
    for field in message.fields:
        kind = field.message_type.full_name if field.message_type else None
        kind = kind or (field.enum_type.full_name if field.enum_type else None)
        group = field.containing_oneof.name if field.containing_oneof else None
        fields[field.number] = (field.name, field.json_name, field.type, field.is_repeated, kind, group)
    return fields


def main():
    with grpc.insecure_channel(ADDRESS) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ["", "lf.a2a.v1.A2AService", "a2a.v1.A2AService"]:
            answer = health.Check(health_pb2.HealthCheckRequest(service=service))
            expect(answer.status == health_pb2.HealthCheckResponse.SERVING, f"{service or 'the host'} serves")
        try:
            health.Check(health_pb2.HealthCheckRequest(service="no.such.Service"))
        except grpc.RpcError as error:
            expect(error.code() == grpc.StatusCode.NOT_FOUND, "an unknown service is not found")
        else:
            raise SystemExit("gRPC: not so: an unknown service is not found")

        reflected = ProtoReflectionDescriptorDatabase(channel)
        services = list(reflected.get_services())
        for service in ["lf.a2a.v1.A2AService", "a2a.v1.A2AService", "grpc.health.v1.Health"]:
            expect(service in services, f"{service} is listed")
        pool = descriptor_pool.DescriptorPool(reflected)
        service = pool.FindServiceByName("lf.a2a.v1.A2AService")
        official = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"]
        expect(
            {(m.name, m.input_type.full_name, m.output_type.full_name, m.server_streaming) for m in service.methods}
            == {(m.name, m.input_type.full_name, m.output_type.full_name, m.server_streaming) for m in official.methods},
            "the methods are those of the SDK",
        )
        compared = 0
        for name, theirs in a2a_pb2.DESCRIPTOR.message_types_by_name.items():
            try:
                ours = pool.FindMessageTypeByName(theirs.full_name)
            except KeyError:
                continue  # not reachable from a method
            expect(shape(ours) == shape(theirs), f"{name} looks as in the SDK:\n{shape(ours)}\n{shape(theirs)}")
            compared += 1
        expect(compared > 40, f"most messages are compared, not {compared}")

        # A call as a generic tool makes it, with nothing but what reflection gave.
        method = service.methods_by_name["ListTasks"]
        made, read = map(message_factory.GetMessageClass, (method.input_type, method.output_type))
        call = channel.unary_unary(
            f"/{service.full_name}/{method.name}",
            request_serializer=made.SerializeToString,
            response_deserializer=read.FromString,
        )
        metadata = [("authorization", f"Bearer {KEY}"), ("a2a-version", "1.0")]
        expect(call(made(), metadata=metadata).total_size == 0, "there are no tasks yet")
    print(f"{compared} messages agree")


main()
