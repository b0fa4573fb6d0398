"""Checks that the messages of OpenTelemetry parse the file of `nibble job trace --otlp`.

    python otlp_check.py NIBBLE NIBBLE_COORDINATOR WORK

Runs a coordinator, submits a job, which no worker takes, cancels it, and parses the trace of its life with PyPI's
opentelemetry-proto: every field has to be known and of its type, and the spans have to be a tree in time. Prints a line per
check; exits with 1 if one fails.
"""

import base64
import json
import pathlib
import re
import subprocess
import sys
import threading

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

SPEC = """name: train
model: tiny-hybrid
recipe: nvfp4
data: {train: [/corpus.txt], sequence: 128}
training: {steps: 1000, batch: 16}
"""
IDS = ("traceId", "spanId", "parentSpanId")


def as_protobuf_json(value):
    """OTLP writes ids in hexadecimal; protobuf's JSON has base64 for all bytes. Everything else is protobuf's JSON."""
    if isinstance(value, dict):
        return {key: base64.b64encode(bytes.fromhex(item)).decode() if key in IDS else as_protobuf_json(item)
                for key, item in value.items()}
    return [as_protobuf_json(item) for item in value] if isinstance(value, list) else value


def main():
    nibble, coordinator, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    failures = 0

    def check(what, holds):
        nonlocal failures
        failures += not holds
        print(f"{'ok' if holds else 'FAILED'}: {what}")

    process = subprocess.Popen([coordinator, "--store", work / "otlp-store", "--cluster", "otlp", "--listen", "127.0.0.1:0",
                                "--http", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
    try:
        output, port = "", None
        while port is None:
            line = process.stderr.readline()
            if not line:
                raise RuntimeError(f"{coordinator} has ended: {output}")
            output += line
            port = re.search(r" on port (\d+),", output)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        server = ["--server", f"127.0.0.1:{port.group(1)}"]
        (work / "otlp.yaml").write_text(SPEC)
        subprocess.run([nibble, "job", "submit", work / "otlp.yaml", *server], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([nibble, "job", "cancel", "train", "--reason", "a \"quoted\" reason", *server], check=True,
                       stdout=subprocess.DEVNULL)
        subprocess.run([nibble, "job", "trace", "train", "--otlp", work / "train.otlp.json", *server], check=True)
    finally:
        process.terminate()
        process.wait(60)

    text = (work / "train.otlp.json").read_text()
    check("one line, as the collector's file receiver reads", text.count("\n") == 1 and text.endswith("\n"))
    request = json_format.ParseDict(as_protobuf_json(json.loads(text)), trace_service_pb2.ExportTraceServiceRequest())
    resource = request.resource_spans[0]
    check("the service's name", any(a.key == "service.name" and a.value.string_value == "nibble"
                                    for a in resource.resource.attributes))
    spans = list(resource.scope_spans[0].spans)
    by_id = {span.span_id: span for span in spans}
    roots = [span for span in spans if not span.parent_span_id]
    check(f"{len(spans)} spans, whose ids have 16 and 8 bytes and differ", len(by_id) == len(spans) and all(
        len(span.trace_id) == 16 and len(span.span_id) == 8 for span in spans))
    check("one root, the job", [span.name for span in roots] == ["job train-1"])
    check("parents are spans of the trace, and no child begins before its parent", all(
        span.parent_span_id in by_id and
        by_id[span.parent_span_id].start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        for span in spans if span.parent_span_id))
    check("the time in the queue", "queued" in [span.name for span in spans])
    check("internal spans", {span.kind for span in spans} == {trace_pb2.Span.SPAN_KIND_INTERNAL})
    check("the submission is an event", "submitted" in [event.name for event in roots[0].events])
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
