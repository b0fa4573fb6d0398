#!/usr/bin/env python3
"""What the guards find in runs that are well: the bounds of a spec have to be above it.

    bazel build //worker/trainer/loop:nibble-trainer
    bench/guards/healthy_runs.py                                      every recipe on tiny-transformer and tiny-hybrid
    bench/guards/healthy_runs.py --models small-hybrid --recipes nvfp4 bf16 --steps 300

Each model is trained on license texts of Debian under each preset of the recipe, with the guards of the defaults, which observe.
    bench/guards/healthy_runs.py --runs learning                      finished runs: their outputs, event logs, or exports as CSV

Each model is trained on license texts of Debian under each preset of the recipe, with the guards of the defaults, which observe.
With --runs nothing is trained: it names event logs (events.jsonl), directories that have some below them, and CSV files with the
columns step, loss and gradient_norm (`nibble job metrics JOB -o csv`), which have no figures of operands.

A line has the largest value of each figure that a guard judges (z: standard deviations above the mean of the last values that were
no spikes, from the first full window on, as the trainer judges them; the others: of any sampled operand), how many steps each guard
would act on with the bounds of the defaults, and what the guards of the run found. Ends with the largest values of all runs and the
steps that guards would have acted on. In runs that are well there should be none: then the exit code is 0, otherwise 1.
"""
import argparse
import csv
import json
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAINER = ROOT / "bazel-bin/worker/trainer/loop/nibble-trainer"
RECIPES = ["bf16", "nvfp4", "nvfp4-base", "mxfp4", "mxfp8", "fp8-block", "fp4-zhou", "fp4-zhou-token"]
TEXTS = ["GPL-3", "LGPL-2.1", "GPL-2", "Apache-2.0", "GFDL-1.3", "MPL-2.0"]
WINDOW = 64              # guards.spike_window
LEAST_DEVIATION = 1e-3   # SpikeGuard::kLeastDeviation
MOST_IN_A_ROW = 10       # SpikeGuard::kMostInARow
# The bounds of the defaults: job/job_spec.h, GuardSpec.
BOUNDS = {"spike": 6.0, "gradient_norm": 200.0, "relative_error": 0.5, "underflow": 0.85, "clipped": 0.3}
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


def judged(values, bound):
    """The largest z and the number of spikes above the bound, as SpikeGuard finds them."""
    most, spikes, window, in_a_row = 0.0, 0, [], 0
    for value in values:
        z = 0.0
        if not math.isfinite(value):
            z = math.inf
        elif len(window) == WINDOW:
            mean = sum(window) / WINDOW
            deviation = math.sqrt(sum((one - mean) ** 2 for one in window) / WINDOW)
            z = (value - mean) / max(deviation, LEAST_DEVIATION * abs(mean))
        most = max(most, z)
        if z <= bound:
            window = (window + [value])[-WINDOW:]
            in_a_row = 0
            continue
        spikes += 1
        in_a_row += 1
        if in_a_row == MOST_IN_A_ROW:
            window, in_a_row = [], 0
    return most, spikes


class Run:
    """Figures of one run, and what its guards found."""

    def __init__(self, name, recipe, seed=""):
        self.name, self.recipe, self.seed = name, recipe, seed
        self.steps = {}      # (loss, gradient norm) by step; of a step that ran twice the last
        self.operands = {}   # figures by (step, layer, operand), of the rank with the largest
        self.found = {}

    def add_event(self, event):
        kind = event["event"]
        if kind == "start":
            self.recipe = self.recipe or str(event.get("recipe", ""))
            self.seed = self.seed or event.get("seed", "")
        elif kind == "step":
            self.steps[event["step"]] = tuple(math.nan if event[key] is None else event[key] for key in ("loss", "gradient_norm"))
        elif kind == "precision" and event["format"]:
            key = (event["step"], event["layer"], event["operand"])
            before = self.operands.get(key, [0.0] * len(FIGURES))
            self.operands[key] = [max(old, event[figure]) for old, figure in zip(before, FIGURES)]
        elif kind == "guard":
            self.found[event["guard"]] = self.found.get(event["guard"], 0) + 1

    def judge(self):
        """The largest values, and the steps that each guard would act on."""
        ordered = [self.steps[step] for step in sorted(self.steps)]
        most, acts = {}, {}
        most["loss z"], acts["spike"] = judged([loss for loss, _ in ordered], BOUNDS["spike"])
        most["norm z"], acts["gradient_norm"] = judged([norm for _, norm in ordered], BOUNDS["gradient_norm"])
        for i, figure in enumerate(FIGURES):
            most[figure] = max((figures[i] for figures in self.operands.values()), default=0.0)
            acts[figure] = len({key[0] for key, figures in self.operands.items() if figures[i] > BOUNDS[figure]})
        return most, acts


def read_log(path, run):
    with open(path) as log:
        for line in log:
            if line.endswith("\n"):  # a run that was killed may have begun a line
                run.add_event(json.loads(line))
    return run


def read_csv(path):
    """The runs of a file, by its column `recipe` if it has one."""
    runs = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            name = row.get("recipe") or ""
            run = runs.setdefault(name, Run(path.parent.name or path.stem, name))
            run.steps[int(row["step"])] = tuple(float(row[key]) if row[key] else math.nan for key in ("loss", "gradient_norm"))
    return list(runs.values())


def finished(paths):
    """The runs at these paths."""
    for path in paths:
        if path.suffix == ".csv":
            yield from read_csv(path)
            continue
        logs = [path] if path.is_file() else sorted(path.rglob("events.jsonl"))
        if not logs:
            sys.exit(f"--runs: no events.jsonl below {path}")
        for log in logs:
            yield read_log(log, Run(log.resolve().parent.name, ""))


def run(options, model, recipe, seed, directory):
    name = f"{model}-{recipe}-{seed}"
    output = directory / name
    spec = directory / f"{name}.yaml"
    texts = ", ".join(f"/usr/share/common-licenses/{text}" for text in TEXTS)
    spec.write_text(SPEC.format(name=name, model=model, recipe=recipe, texts=texts, sequence=options.sequence,
                                steps=options.steps, batch=options.batch, seed=seed, every=options.every,
                                device=options.device, threads=options.threads, directory=output))
    subprocess.run([options.trainer, "--spec", spec, "--quiet"], check=True)
    return read_log(output / "events.jsonl", Run(model, recipe, seed))


def trained(options):
    """Trains every model under every recipe."""
    with tempfile.TemporaryDirectory() as scratch:
        for model in options.models:
            for recipe in options.recipes:
                for seed in options.seeds:
                    yield run(options, model, recipe, seed, pathlib.Path(scratch))


def counts(acts):
    return ", ".join(f"{guard} {count}" for guard, count in sorted(acts.items()) if count) or "nothing"


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
    parser.add_argument("--runs", nargs="+", type=pathlib.Path, help="finished runs, instead of training")
    options = parser.parse_args()
    print(f"{'run':18}{'recipe':16}{'seed':>5}{'steps':>8}{'loss':>7}{'loss z':>8}{'norm z':>8}{'error':>8}{'underfl.':>9}{'clipped':>8}"
          "  guards would act on / found", flush=True)
    largest, all_acts = {}, {}
    for one in finished(options.runs) if options.runs else trained(options):
        most, acts = one.judge()
        for name, value in most.items():
            largest[name] = max(largest.get(name, 0.0), value)
        for name, count in acts.items():
            all_acts[name] = all_acts.get(name, 0) + count
        loss = one.steps[max(one.steps)][0] if one.steps else math.nan
        print(f"{one.name[:17]:18}{one.recipe[:15]:16}{one.seed:>5}{len(one.steps):8}{loss:7.3f}{most['loss z']:8.1f}{most['norm z']:8.1f}"
              f"{most['relative_error']:8.3f}{most['underflow']:9.3f}{most['clipped']:8.3f}  {counts(acts)} / {counts(one.found)}", flush=True)
    if not largest:
        sys.exit("no run was read")
    print(f"{'largest':54}{largest['loss z']:8.1f}{largest['norm z']:8.1f}{largest['relative_error']:8.3f}"
          f"{largest['underflow']:9.3f}{largest['clipped']:8.3f}  {counts(all_acts)}")
    bounds = ", ".join(f"{guard} {bound:g}" for guard, bound in BOUNDS.items())
    print(f"bounds: {bounds}")
    return 1 if any(all_acts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
