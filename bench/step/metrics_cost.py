#!/usr/bin/env python3
"""The cost of metrics and precision statistics as a share of the step's time, and the series per job.

    bazel build //worker/trainer/loop:nibble-trainer //client:nibble
    bench/step/metrics_cost.py                     tiny-hybrid and small-hybrid on the CPU
    bench/step/metrics_cost.py --device cuda --models gpt2-125m hybrid-1b --batch 64

Each model is trained once, with statistics in every third step, so that steps with and without them alternate in one run and see
the same machine. From the medians follows the cost at the default setting, one sampled step in --every. The time that a step takes
beyond its device's queue is that of everything else on the host, with an event in the log for every step, and so bounds the cost of
metrics from above.

Series are counted from docs/reference/metrics.md, by their labels, and from the layers that the recipe quantises. A daemon shows
the precision of at most --layers layers a job by default.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAINER = ROOT / "bazel-bin/worker/trainer/loop/nibble-trainer"
NIBBLE = ROOT / "bazel-bin/client/nibble"
GOAL = 0.01  # of the step's time
CYCLE = 3    # steps: a sampled one, one that writes its events, one without either
WARMUP = 6   # steps that prepare memory and recordings
PARTS = 6    # of a step: data, weights, forward, backward, communication, optimizer

SPEC = """\
name: {name}
model: {model}
recipe: nvfp4
data: {{train: [{text}], sequence: {sequence}}}
training: {{steps: {steps}, batch: {batch}}}
metrics: {{precision_every: {every}, log_every: 1}}
resources: {{device: {device}, threads: {threads}}}
checkpoints: {{every: 0}}
output: {{directory: {directory}}}
"""


def run(options, model, directory):
    """The step events of a run, and the number of operands of a sample."""
    text = directory / "text.txt"
    if not text.exists():
        text.write_text("".join(f"{n} times {n + 1} is {n * (n + 1)}.\n" for n in range(200_000)))
    output = directory / model
    spec = directory / f"{model}.yaml"
    spec.write_text(SPEC.format(name=model, model=model, text=text, sequence=options.sequence, steps=options.steps,
                                batch=options.batch, every=CYCLE, device=options.device, threads=options.threads,
                                directory=output))
    subprocess.run([TRAINER, "--spec", spec, "--quiet"], check=True)
    events = [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    operands = sum(1 for event in events if event["event"] == "precision" and event["step"] == 0)
    return steps[WARMUP:], operands


def measure(options, model, directory):
    steps, operands = run(options, model, directory)
    tokens = options.batch * options.sequence
    # The time from the report of the step before to that of this one. A report times the step before it writes the events of
    # its operands, so a step's statistics take time in this step, and their events in the next one.
    wall = [statistics.median(tokens / step["tokens_per_second"] for step in steps if step["step"] % CYCLE == at)
            for at in range(CYCLE)]
    queue = [statistics.median(step["seconds"] for step in steps if step["step"] % CYCLE == at) for at in range(CYCLE)]
    plain = wall[2]
    statistic, events = wall[0] - plain, wall[1] - plain
    share = max(0.0, statistic + events) / plain / options.every
    outside = max(0.0, plain - queue[2])
    outside_share = outside / plain
    print(f"{model}: {len(steps)} steps of {tokens} tokens on {options.device}, {operands} quantised operands")
    print(f"  a step {plain * 1e3:.3f} ms; one with statistics {wall[0] * 1e3:.3f} ms, the one after it, which writes their "
          f"events, {wall[1] * 1e3:.3f} ms")
    print(f"  statistics: {statistic * 1e3:+.3f} ms and {events * 1e3:+.3f} ms for one step in {options.every}: {share:.3%} of "
          "the step's time")
    print(f"  beside the queue: {outside * 1e6:.0f} µs a step, {outside_share:.3%}: event log, reports, progress, boundary")
    total = share + outside_share
    print(f"  together {total:.3%}: {'within' if total < GOAL else 'ABOVE'} the goal of {GOAL:.0%}")
    return total < GOAL


def metric_rows():
    """(name, labels) of the metrics of jobs on a worker, from the reference."""
    rows = []
    page = (ROOT / "docs/reference/metrics.md").read_text()
    page = page[page.rindex("\n## ", 0, page.index("`nibble_job_loss`")):]
    for line in page.splitlines():
        found = re.match(r"\| `(nibble_[a-z_]+)` \| [a-z]+ \| [^|]* \| ([^|]*) \|", line)
        if found and "job" in found[2].split(", "):
            rows.append((found[1], [label for label in found[2].strip().split(", ") if label]))
    return rows


def quantised(model, recipe):
    shown = subprocess.run([NIBBLE, "recipe", "show", recipe, "--model", model, "-o", "json"], check=True,
                           capture_output=True, text=True)
    layers = json.loads(shown.stdout)["layers"]
    counts = [sum(operand["format"] != "bf16" for operand in layer["operands"].values()) for layer in layers]
    return [count for count in counts if count]


def series(model, recipe, most_layers, ranks):
    """Series of a job with all ranks on one worker: of the job and its ranks, and of precision: default and all layers."""
    fixed = 0
    per_operand = 0
    for _, labels in metric_rows():
        rest = [label for label in labels if label != "job"]
        if "operand" in rest:
            per_operand += 1
        elif rest == ["rank"]:
            fixed += ranks
        elif rest == ["rank", "part"]:
            fixed += ranks * PARTS
        elif rest in (["gemm", "path"],):
            fixed += 3 * 2  # three GEMMs, at most quantised and not
        elif rest:
            fixed += 8  # states, results, phases: at most eight values of the label
        else:
            fixed += 1
    layers = quantised(model, recipe)
    shown = sum(sorted(layers, reverse=True)[:most_layers])
    return fixed, per_operand * shown, per_operand * sum(layers), len(layers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny-hybrid", "small-hybrid"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--every", type=int, default=100, help="metrics.precision_every of long runs (default: 100)")
    parser.add_argument("--layers", type=int, default=16, help="layers that a daemon shows by default")
    parser.add_argument("--ranks", type=int, default=8, help="ranks of the job whose series are counted")
    options = parser.parse_args()
    within = True
    with tempfile.TemporaryDirectory() as directory:
        for model in options.models:
            within &= measure(options, model, pathlib.Path(directory))
    print(f"series of a job with {options.ranks} ranks on one worker, recipe nvfp4:")
    for model in [*options.models, "nemotron-h-12b"]:
        fixed, shown, everything, layers = series(model, "nvfp4", options.layers, options.ranks)
        print(f"  {model}: at most {fixed + shown} by default: {fixed} of job and ranks, {shown} of the precision of "
              f"{min(layers, options.layers)} of {layers} quantised layers; with all layers {fixed + everything}")
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
