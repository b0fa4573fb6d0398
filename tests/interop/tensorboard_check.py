"""Checks that TensorBoard reads the event files of `nibble job metrics --tensorboard`, and those that a run writes itself.

    python tensorboard_check.py NIBBLE NIBBLE_TRAINER WORK

Exports the event log of a run that resumed, with TensorBoard's own reader compares every scalar with the log, and reads the
spec as a text. Trains with output.tensorboard, stops, resumes, and compares in the same way. Prints a line per check; exits with
1 if one fails.
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


def read(directory):
    reader = event_accumulator.EventAccumulator(str(directory), size_guidance={event_accumulator.SCALARS: 0,
                                                                               event_accumulator.TENSORS: 0})
    reader.Reload()
    return reader


def same_points(points, lines, name):
    """Whether the curve has the figure of each line, in order."""
    return len(points) == len(lines) and all(
        point.step == line["step"] and (point.value == as_float(line[name]) or
                                        math.isnan(point.value) and line[name] == "nan")
        for point, line in zip(points, lines))


def check_own_files(trainer, work, check):
    """A run that stops after six steps and then resumes, beside its event log."""
    corpus = work / "corpus.txt"
    corpus.write_text("\n\n".join(" ".join(f"word{(i * j) % 17}" for j in range(200)) for i in range(1, 30)))
    run = work / "own"
    for stop_at in (6, 12):
        spec = work / f"own-{stop_at}.yaml"
        spec.write_text(f"""name: own
model: tiny-transformer
recipe: nvfp4
data: {{train: [{corpus}], sequence: 16, validation_fraction: 0.1}}
training: {{steps: 12, stop_at: {stop_at}, batch: 2, validate_every: 4}}
optimizer: {{warmup_steps: 2}}
metrics: {{log_every: 1, precision_every: 5}}
checkpoints: {{every: 3}}
resources: {{ranks: 1, threads: 1}}
output: {{directory: {run}, tensorboard: board}}
""")
        subprocess.run([trainer, "--spec", spec, "--quiet"], check=True)
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    steps = sorted({line["step"]: line for line in lines if line["event"] == "step"}.items())
    files = sorted((run / "board").iterdir())
    check(f"output.tensorboard: a file for each of {len(files)} starts", len(files) == 2)
    reader = read(run / "board")
    names = [name for name in steps[0][1] if name not in ("schema", "event", "time", "step")]
    for name in names:
        check(f"output.tensorboard: train/{name} of {len(steps)} steps",
              same_points(reader.Scalars(f"train/{name}"), [line for _, line in steps], name))
    samples = [line for line in lines if line["event"] == "precision" and line["layer"] == "blocks.1.mlp.up"
               and line["operand"] == "fprop.weight"]
    check(f"output.tensorboard: {len(samples)} precision samples",
          same_points(reader.Scalars("precision_relative_error/blocks.1.mlp.up/fprop.weight"), samples, "relative_error"))
    validations = [line for line in lines if line["event"] == "validation"]
    check("output.tensorboard: validation losses",
          same_points(reader.Scalars(f"validation/{validations[0]['set']}"),
                      [{**line, "step": line["step"] - 1} for line in validations], "loss"))


def main():
    nibble, trainer, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    run = work / "tensorboard" / "tiny-1"
    run.mkdir(parents=True)
    lines = log()
    (run / "events.jsonl").write_text("\n".join(lines) + "\n")
    subprocess.run([nibble, "job", "metrics", run, "--precision", "--tensorboard", work / "logs"], check=True)
    reader = read(work / "logs" / "tiny-1")
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
        points = reader.Scalars(f"train/{name}")
        check(f"train/{name}: {len(points)} points as in the log, each step once",
              same_points(points, [line for _, line in sorted(newest.items())], name))
    losses = reader.Scalars("train/loss")
    check("wall times of the log", losses[0].wall_time == 1769860801.5)
    validation = reader.Scalars("validation/held-out")
    check("validation", [(point.step, point.value) for point in validation] == [(9, 3.25)])
    precision = reader.Scalars("precision_relative_error/blocks.1.mlp.up/fprop.weight")
    check("precision", [(point.step, point.value) for point in precision] == [(9, as_float(0.09))])
    summary = reader.SummaryMetadata("train/loss")
    check("the description of a curve", summary.summary_description == "mean loss over the step's tokens (nats per token)")
    text = tensor_util.make_ndarray(reader.Tensors("spec")[0].tensor_proto)
    check("the spec as a text", b"model: tiny-hybrid" in text.item() and
          reader.SummaryMetadata("spec").plugin_data.plugin_name == "text")
    check_own_files(trainer, work, check)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
