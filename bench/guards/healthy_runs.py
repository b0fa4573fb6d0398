#!/usr/bin/env python3
"""What the guards find in runs that are well: the bounds of a spec have to be above it.

    bazel build //worker/trainer/loop:nibble-trainer
    bench/guards/healthy_runs.py                                      every recipe on tiny-transformer and tiny-hybrid
    bench/guards/healthy_runs.py --models small-hybrid --recipes nvfp4 bf16 --steps 300

Each model is trained on license texts of Debian under each preset of the recipe, with the guards of the defaults, which observe.
A line has the largest value of each figure that a guard judges (z: standard deviations above the mean of the window, from the
window's first full step on; the others: of any sampled operand), and what the guards found. Ends with the largest values of all runs.
"""
import argparse
import json
import math
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAINER = ROOT / "bazel-bin/worker/trainer/loop/nibble-trainer"
RECIPES = ["bf16", "nvfp4", "nvfp4-base", "mxfp4", "mxfp8", "fp8-block", "fp4-zhou", "fp4-zhou-token"]
TEXTS = ["GPL-3", "LGPL-2.1", "GPL-2", "Apache-2.0", "GFDL-1.3", "MPL-2.0"]
WINDOW = 64              # guards.spike_window
LEAST_DEVIATION = 1e-3   # SpikeGuard::kLeastDeviation
FIGURES = ["relative_error", "underflow", "clipped"]

SPEC = """\
name: {name}
model: {model}
recipe: {recipe}
data: {{train: [{texts}], sequence: {sequence}, validation_fraction: 0}}
training: {{steps: {steps}, batch: {batch}, seed: {seed}, validate_every: 0}}
metrics: {{precision_every: {every}, log_every: 1}}
resources: {{device: {device}, threads: {threads}}}
checkpoints: {{every: 0, at_end: false}}
output: {{directory: {directory}}}
"""


def largest_z(values):
    """The largest distance of a value from the mean of the WINDOW before it, in standard deviations."""
    most = 0.0
    for at in range(WINDOW, len(values)):
        window = values[at - WINDOW:at]
        mean = sum(window) / WINDOW
        deviation = math.sqrt(sum((value - mean) ** 2 for value in window) / WINDOW)
        most = max(most, (values[at] - mean) / max(deviation, LEAST_DEVIATION * abs(mean)))
    return most


def run(options, model, recipe, seed, directory):
    name = f"{model}-{recipe}-{seed}"
    output = directory / name
    spec = directory / f"{name}.yaml"
    texts = ", ".join(f"/usr/share/common-licenses/{text}" for text in TEXTS)
    spec.write_text(SPEC.format(name=name, model=model, recipe=recipe, texts=texts, sequence=options.sequence,
                                steps=options.steps, batch=options.batch, seed=seed, every=options.every,
                                device=options.device, threads=options.threads, directory=output))
    subprocess.run([options.trainer, "--spec", spec, "--quiet"], check=True)
    events = [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    most = {"loss z": largest_z([event["loss"] for event in steps]),
            "norm z": largest_z([event["gradient_norm"] for event in steps])}
    for figure in FIGURES:
        most[figure] = max((event[figure] for event in events if event["event"] == "precision" and event["format"]),
                           default=0.0)
    found = {}
    for event in events:
        if event["event"] == "guard":
            found[event["guard"]] = found.get(event["guard"], 0) + 1
    return steps[-1]["loss"], most, found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny-transformer", "tiny-hybrid"])
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--every", type=int, default=20, help="steps between samples of operands")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--trainer", default=TRAINER)
    options = parser.parse_args()
    print(f"{'model':18}{'recipe':16}{'seed':>5}{'loss':>7}{'loss z':>8}{'norm z':>8}{'error':>8}{'underfl.':>9}{'clipped':>8}  found",
          flush=True)
    largest = {}
    with tempfile.TemporaryDirectory() as scratch:
        for model in options.models:
            for recipe in options.recipes:
                for seed in options.seeds:
                    loss, most, found = run(options, model, recipe, seed, pathlib.Path(scratch))
                    for name, value in most.items():
                        largest[name] = max(largest.get(name, 0.0), value)
                    texts = ", ".join(f"{guard} {count}" for guard, count in sorted(found.items())) or "nothing"
                    print(f"{model:18}{recipe:16}{seed:5}{loss:7.3f}{most['loss z']:8.1f}{most['norm z']:8.1f}"
                          f"{most['relative_error']:8.3f}{most['underflow']:9.3f}{most['clipped']:8.3f}  {texts}", flush=True)
    print(f"{'largest':46}{largest['loss z']:8.1f}{largest['norm z']:8.1f}{largest['relative_error']:8.3f}"
          f"{largest['underflow']:9.3f}{largest['clipped']:8.3f}")


if __name__ == "__main__":
    main()
