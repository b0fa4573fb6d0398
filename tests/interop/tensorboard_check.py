"""Checks that TensorBoard reads the event files of `nibble job metrics --tensorboard`.

    python tensorboard_check.py NIBBLE WORK

Exports the event log of a run that resumed, with TensorBoard's own reader compares every scalar with the log, and reads the
spec as a text. Prints a line per check; exits with 1 if one fails.
"""

import json
import math
import pathlib
import struct
import subprocess
import sys

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

PARTS = ["data", "weights", "forward", "backward", "reduce", "update"]


def event(kind, second, **fields):
    time = f"2026-01-31T12:{second // 60:02}:{second % 60:02}.500Z"
    return json.dumps({"schema": 1, "event": kind, "time": time, **fields})


def step(number, second, loss):
    return event("step", second, step=number, tokens=(number + 1) * 64, loss=loss, gradient_norm=0.5, learning_rate=1e-3,
                 revision=1, updated=True, tokens_per_second=1e5, seconds=0.01,
                 **{f"{part}_seconds": 0.001 for part in PARTS})


def log():
    """A run of ten steps, of which 6 and 7 were made twice; the loss of step 3 is not a number."""
    lines = [event("start", 0, first_step=0, spec="name: tiny\nmodel: tiny-hybrid\n")]
    lines += [step(n, n + 1, "nan" if n == 3 else 5 - n / 10) for n in range(8)]
    lines += [event("start", 20, first_step=6, spec="name: tiny\nmodel: tiny-hybrid\n")]
    lines += [step(n, n + 21, 4 - n / 10) for n in range(6, 10)]
    lines += [event("validation", 40, step=10, set="held-out", loss=3.25, batches=2, revision=1, seconds=0.1)]
    lines += [event("precision", 41, step=9, layer="blocks.1.mlp.up", operand="fprop.weight", format="nvfp4",
                    relative_error=0.09, snr_db=20.9, underflow=0.01, clipped=0.0, amax=1.5, scale_spread_octaves=4.0,
                    non_finite=0)]
    return lines


def as_float(value):
    return struct.unpack("<f", struct.pack("<f", float(value)))[0]


def main():
    nibble, work = sys.argv[1], pathlib.Path(sys.argv[2])
    run = work / "tensorboard" / "tiny-1"
    run.mkdir(parents=True)
    lines = log()
    (run / "events.jsonl").write_text("\n".join(lines) + "\n")
    subprocess.run([nibble, "job", "metrics", run, "--precision", "--tensorboard", work / "logs"], check=True)
    reader = event_accumulator.EventAccumulator(str(work / "logs" / "tiny-1"), size_guidance={event_accumulator.SCALARS: 0,
                                                                                             event_accumulator.TENSORS: 0})
    reader.Reload()
    failures = 0

    def check(what, holds):
        nonlocal failures
        failures += not holds
        print(f"{'ok' if holds else 'FAILED'}: {what}")

    newest = {}
    for line in map(json.loads, lines):
        if line["event"] == "step":
            newest[line["step"]] = line
    names = [name for name in newest[0] if name not in ("schema", "event", "time", "step")]
    tags = reader.Tags()
    check("a curve for every figure of a step", {f"train/{name}" for name in names} <= set(tags["scalars"]))
    for name in names:
        points = [(point.step, point.value) for point in reader.Scalars(f"train/{name}")]
        expected = [(number, as_float(line[name])) for number, line in sorted(newest.items())]
        same = len(points) == len(expected) and all(
            a == c and (b == d or math.isnan(b) and math.isnan(d)) for (a, b), (c, d) in zip(points, expected))
        check(f"train/{name}: {len(points)} points as in the log, each step once", same)
    losses = reader.Scalars("train/loss")
    check("wall times of the log", losses[0].wall_time == 1769860801.5)
    validation = reader.Scalars("validation/held-out")
    check("validation", [(point.step, point.value) for point in validation] == [(10, 3.25)])
    precision = reader.Scalars("precision_relative_error/blocks.1.mlp.up/fprop.weight")
    check("precision", [(point.step, point.value) for point in precision] == [(9, as_float(0.09))])
    summary = reader.SummaryMetadata("train/loss")
    check("the description of a curve", summary.summary_description == "mean loss over the step's tokens (nats per token)")
    text = tensor_util.make_ndarray(reader.Tensors("spec")[0].tensor_proto)
    check("the spec as a text", b"model: tiny-hybrid" in text.item() and
          reader.SummaryMetadata("spec").plugin_data.plugin_name == "text")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
