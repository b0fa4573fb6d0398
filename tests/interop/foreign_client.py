"""Calls the coordinator from gRPC's Python with server reflection alone, without stubs or .proto
files, as grpcurl does: list, describe, call; error details, health, and the metrics.

    python foreign_client.py NIBBLE_COORDINATOR WORK_DIRECTORY

Prints a line per check; exits with 1 if one fails.
"""

import os
import re
import subprocess
import sys
import threading
import urllib.request

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_status import rpc_status

SECONDS = 60
SPEC = """name: train
model: tiny-hybrid
recipe: nvfp4
data: {train: [/corpus.txt], sequence: 128}
training: {steps: 1000, batch: 16}
"""
failed = 0


def report(what, ok, seen=""):
    global failed
    failed += not ok
    print(f"{'ok  ' if ok else 'FAIL'} {what}{'' if ok else f': {seen}'}", flush=True)


class Coordinator:
    def __init__(self, program, work):
        self.process = subprocess.Popen(
            [program, "--store", os.path.join(work, "store"), "--cluster", "interop"]
            + ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.output, ports = "", None
        while ports is None:
            line = self.process.stderr.readline()
            if not line:
                raise RuntimeError(f"{program} has ended: {self.output}")
            self.output += line
            ports = re.search(r"metrics at http://\S+:(\d+)[\s\S]* on port (\d+),", self.output)
        self.http_port, self.port = ports.groups()
        # Keeps reading, so that the program never blocks on a full pipe.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(SECONDS)

    def __enter__(self):
        return self


class Client:
    """Calls methods by name, with dictionaries as messages."""

    def __init__(self, channel):
        self.channel = channel
        self.pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))

    def request(self, method, fields):
        message = message_factory.GetMessageClass(method.input_type)()
        return json_format.ParseDict(fields, message)

    def method(self, name, service="nibble.v1.Coordinator"):
        return self.pool.FindServiceByName(service).FindMethodByName(name)

    def call(self, name, fields=None, raw=None):
        method = self.method(name)
        call = self.channel.unary_unary(
            f"/{method.containing_service.full_name}/{name}",
            request_serializer=lambda request: request,
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )
        data = self.request(method, fields or {}).SerializeToString() if raw is None else raw
        response = call(data, timeout=SECONDS)
        return json_format.MessageToDict(response, preserving_proto_field_name=True)

    def refusal(self, name, fields=None, raw=None):
        """Returns the code, the message and the details by type."""
        try:
            answer = self.call(name, fields, raw)
        except grpc.RpcError as error:
            details = {}
            status = rpc_status.from_call(error)
            for detail in status.details if status else []:
                kind = detail.TypeName().rsplit(".", 1)[-1]
                known = getattr(error_details_pb2, kind)()
                detail.Unpack(known)
                details[kind] = known
            return error.code(), error.details(), details
        raise RuntimeError(f"{name} was accepted: {answer}")


def services(channel, version):
    """Both versions are equal on the wire, so the messages of one work for the other."""
    call = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    (answer,) = call(asked, timeout=SECONDS)
    return {service.name for service in answer.list_services_response.service}


def check_reflection(channel, client):
    expected = {"nibble.v1.Coordinator", "nibble.v1.WorkerLink", "nibble.v1.Access", "grpc.health.v1.Health"}
    expected |= {f"grpc.reflection.{v}.ServerReflection" for v in ("v1", "v1alpha")}
    for version in ("v1", "v1alpha"):
        seen = services(channel, version)
        report(f"reflection {version}: list", seen == expected, seen)
    for service in sorted(expected):
        described = client.pool.FindServiceByName(service)
        report(f"describe {service}", len(described.methods) > 0)


def check_calls(client):
    report("ListJobs", client.call("ListJobs") == {})
    submit = {"request_id": "interop-1", "spec_yaml": SPEC}
    dry = client.call("SubmitJob", {**submit, "dry_run": True})
    report("SubmitJob, dry run", dry["job"]["state"] == "JOB_STATE_QUEUED", dry)
    report("a dry run stores nothing", client.call("ListJobs") == {})
    job = client.call("SubmitJob", submit)["job"]["id"]
    listed = client.call("ListJobs", {"page": {"size": 1_000_000}})
    report("a page above the bound is lowered", [j["id"] for j in listed["jobs"]] == [job], listed)
    fields = client.request(client.method("DescribeJob"), {"job": job}).SerializeToString()
    described = client.call("DescribeJob", raw=fields + b"\xf8\x3e\x01")
    report("a field of a newer caller is ignored", described["job"]["id"] == job, described)
    return job


def check_refusals(client, job):
    invalid = grpc.StatusCode.INVALID_ARGUMENT

    code, message, details = client.refusal(
        "SubmitJob", {"request_id": "interop-2", "spec_yaml": SPEC.replace("16", "-16")}
    )
    violations = [v.field for v in details["BadRequest"].field_violations]
    report("a wrong spec names its field", "spec_yaml.training.batch" in violations, message)
    report("its cause is of our domain", details["ErrorInfo"].domain == "nibble.v1", details)

    code, message, details = client.refusal("DescribeJob", {"job": "train-99"})
    seen = details["ErrorInfo"].reason, dict(details["ErrorInfo"].metadata)
    report("NOT_FOUND names its field", seen == ("NOT_FOUND", {"field": "job"}), seen)

    wait = client.request(client.method("WaitJob"), {"job": job}).SerializeToString()
    code, message, details = client.refusal("WaitJob", raw=wait + b"\x10\xe7\x07")
    field = details["BadRequest"].field_violations[0].field
    report("an enum value that is none", (code, field) == (invalid, "states[0]"), message)

    code, message, details = client.refusal("DescribeJob", raw=b"\x0a\x02\xff\xfe")
    field = details["BadRequest"].field_violations[0].field
    report("a text that is not UTF-8", (code, field) == (invalid, "job"), message)

    code, message, _ = client.refusal("DescribeJob", raw=b"\x0a\x7f")
    report("bytes that are no message", code == invalid, message)


def check_health(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "nibble.v1.Coordinator", "nibble.v1.WorkerLink", "nibble.v1.Access"):
        asked = health_pb2.HealthCheckRequest(service=service)
        status = stub.Check(asked, timeout=SECONDS).status
        report(f"health of '{service}'", status == health_pb2.HealthCheckResponse.SERVING, status)


def check_metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS) as answer:
        page = answer.read().decode()
    for method in ("ListJobs", "SubmitJob", "DescribeJob", "WaitJob"):
        known = re.search(rf'nibble_rpc_seconds_count{{method="{method}"}} [1-9]', page)
        report(f"{method} is timed in the metrics", known is not None)
    report("no call is 'other'", 'method="other"' not in page)


def main():
    program, work = sys.argv[1:]
    print(f"grpcio {grpc.__version__}", flush=True)
    with Coordinator(program, work) as coordinator:
        with grpc.insecure_channel(f"127.0.0.1:{coordinator.port}") as channel:
            client = Client(channel)
            check_reflection(channel, client)
            check_refusals(client, check_calls(client))
            check_health(channel)
        check_metrics(coordinator.http_port)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
