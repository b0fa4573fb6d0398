#!/usr/bin/env python3
"""What a checkpoint costs a job on one card: steps around its snapshots beside the others, in one run.

    bench/gpu/checkpoints.py BIN [--models 1.2B 124M] [--recipe bf16] [--device cuda] [--snapshots 3] [--directory DIR]

BIN: the directory of nibble-trainer and step_bench. A snapshot before step S is copied to pinned memory while S is computed, and
the update of S waits for the copy. For every model, from one run on random tokens with checkpoints every N steps: the median
time of a step that has neither a snapshot nor a checkpoint being written beside it; the same while one is being written; the
steps from S - 1 to S + 2 of every snapshot; and the stall, which is by how much these four together are longer than four
others, on the wall's clock (events carry milliseconds). Beside it the limit: the bytes at the rate at which an idle card copies
to pinned memory, measured in the same session. `update` is that of S, which begins after the copy, in excess of the median.
Parts of a step are medians of the steps without a snapshot, from events in the queue. Checkpoints are written to DIR (a
temporary directory), which takes two of them. Exits 1 if a run failed or a stall is longer than 1.1 times the limit's copy.
"""

import argparse
import array
import datetime
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile

from scaling import MODELS

EVERY = {"1.2B": 80, "124M": 40, "tiny": 20}
PARTS = ("data", "weights", "forward", "backward", "reduce", "update")

JOB = """name: checkpoints
model: %(model)s
recipe: %(recipe)s
data: {train: [{path: %(tokens)s, token_width: 2}], tokenizer_label: random, sequence: %(sequence)d}
training: {steps: %(steps)d, batch: %(batch)d, micro_batch: %(batch)d, validate_every: 0, seed: 1}
metrics: {log_every: 1, precision_every: 0}
checkpoints: {every: %(every)d, at_end: false, keep_last: 1}
resources: {device: %(device)s}
output: {directory: %(output)s}
"""


def write_tokens(path, what):
    source = random.Random(1)
    count = 4 * what["batch"] * (what["sequence"] + 1)
    path.write_bytes(array.array("H", (source.randrange(what["vocabulary"]) for _ in range(count))).tobytes())


def seconds_of(event):
    return datetime.datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp()


def limit_of(programs, device):
    """Bytes per second of a copy to pinned memory."""
    done = subprocess.run([str(programs / "step_bench"), "--device", device, "--limits"], capture_output=True, text=True,
                          check=True)
    print(done.stdout.strip(), flush=True)
    return 1e9 * float(re.search(r"to the host ([\d.]+) GB/s", done.stdout).group(1))


def events_of(programs, root, model, arguments):
    what = MODELS[model]
    every = EVERY[model]
    spec = root / f"{model}.yaml"
    output = root / f"{model}-out"
    spec.write_text(JOB % {"model": what["model"], "recipe": arguments.recipe, "tokens": root / f"{model}.bin",
                           "sequence": what["sequence"], "steps": every * arguments.snapshots + every // 2, "batch": what["batch"],
                           "every": every, "device": arguments.device, "output": output})
    done = subprocess.run([str(programs / "nibble-trainer"), "--spec", str(spec), "--quiet"], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{model}: exit {done.returncode}: {done.stderr.strip()[-600:]}", flush=True)
        return []
    return [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]


def report(model, events, limit):
    """Prints a model's table; whether every stall is within the limit."""
    steps = {event["step"]: event for event in events if event["event"] == "step"}
    stored = [event for event in events if event["event"] == "checkpoint" and event["stored"]]
    if not stored:
        print(f"{model}: no checkpoint was stored")
        return False
    # From the decision before to its own.
    wall = {step: seconds_of(steps[step]) - seconds_of(steps[step - 1]) for step in steps if step - 1 in steps}
    around = {step for event in stored for step in range(event["step"] - 1, event["step"] + 3)}
    warm = 8
    storing, plain = [], []
    for step, seconds in wall.items():
        if step < warm or step in around:
            continue
        beside = any(event["step"] <= step and seconds_of(steps[step]) <= seconds_of(event) + seconds for event in stored)
        (storing if beside else plain).append(step)
    median = statistics.median(wall[step] for step in plain)
    print(f"{model}: steps {len(steps)}, without a checkpoint {1e3 * median:.2f} ms "
          f"({1e3 * min(wall[s] for s in plain):.0f} to {1e3 * max(wall[s] for s in plain):.0f})"
          + (f", while one is written {1e3 * statistics.median(wall[s] for s in storing):.2f} ms" if storing else ""))
    print("  parts, ms: " + ", ".join(f"{part} {1e3 * statistics.median(steps[s][part + '_seconds'] for s in plain):.3f}" for part in PARTS)
          + f"; together {1e3 * statistics.median(steps[s]['seconds'] for s in plain):.3f}")
    update = statistics.median(steps[s]["update_seconds"] for s in plain)
    within = True
    print(f"  {'snapshot':>8}{'bytes':>13}{'S - 1':>9}{'S':>9}{'S + 1':>9}{'S + 2':>9}{'stall ms':>10}{'host':>8}{'update':>9}"
          f"{'limit: copy ms':>16}{'written in s':>14}")
    for event in stored:
        first = event["step"]
        near = [wall.get(step) for step in range(first - 1, first + 3)]
        if None in near or first + 1 not in steps:
            continue
        stall = sum(near) - 4 * median
        copy = event["bytes"] / limit
        within &= stall <= 1.1 * copy
        waited = steps[first + 1]["update_seconds"] - update  # a step's event has the update of the step before
        print(f"  {first:8d}{event['bytes']:13d}" + "".join(f"{1e3 * seconds:9.1f}" for seconds in near)
              + f"{1e3 * stall:10.1f}{1e3 * event['stall_seconds']:8.2f}{1e3 * waited:9.2f}{1e3 * copy:16.1f}"
              f"{event['write_seconds']:14.2f}", flush=True)
    return within


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--models", nargs="+", choices=list(EVERY), default=["1.2B", "124M"])
    parser.add_argument("--recipe", default="bf16")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--snapshots", type=int, default=3)
    parser.add_argument("--directory", type=pathlib.Path)
    arguments = parser.parse_args()
    limit = limit_of(arguments.programs, arguments.device)
    good = True
    with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=arguments.directory) as folder:
        for model in arguments.models:
            write_tokens(pathlib.Path(folder) / f"{model}.bin", MODELS[model])
            events = events_of(arguments.programs, pathlib.Path(folder), model, arguments)
            good &= bool(events) and report(model, events, limit)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
