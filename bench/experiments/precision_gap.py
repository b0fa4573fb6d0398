#!/usr/bin/env python3
"""Trains small models under several recipes and seeds, and prints what each recipe costs.

For each model and recipe: the validation loss at the end (mean over seeds), the gap to BF16 paired
by seed with its standard error, in nats and in percent. `nvfp4+switch` is NVFP4 with Fprop in BF16
from 82 % of the steps on; its recovery is the share of NVFP4's gap that it closes.

  bench/experiments/precision_gap.py --trainer bazel-bin/worker/trainer/loop/nibble-trainer \
      --corpus anarchism.txt --out /tmp/gap

Runs that have finished under --out are not run again. Needs Python's standard library only.
"""

import argparse
import concurrent.futures
import json
import math
import os
import subprocess
import sys

RECIPES = {
    "bf16": ("bf16", ""),
    "nvfp4": ("nvfp4", ""),
    "nvfp4+switch": ("nvfp4", 'changes: [{at: "fraction:0.82", set: {fprop: bf16}, '
                              'reason: "recover the forward pass"}]\n'),
    "mxfp4": ("mxfp4", ""),
    "mxfp4 1x32": ("{preset: mxfp4, set: {weights.block: 1x32}}", ""),
}


def spec(a, model, recipe, seed, directory):
    preset, changes = RECIPES[recipe]
    return f"""name: gap
model: {model}
recipe: {preset}
{changes}data:
  train: [{os.path.abspath(a.corpus)}]
  sequence: {a.sequence}
  validation_fraction: 0.05
training: {{steps: {a.steps}, batch: {a.batch}, seed: {seed}, validate_every: {max(1, a.steps // 10)},
  validation_batches: {a.validation_batches}}}
optimizer: {{lr: {a.lr}, final_lr: {a.lr / 100}, warmup_steps: {max(1, a.steps // 50)},
  decay_fraction: 0.18}}
metrics: {{log_every: 10, precision_every: {a.steps}}}
resources: {{threads: {a.threads}}}
output: {{directory: {directory}}}
"""


def run(a, model, recipe, seed):
    directory = os.path.join(os.path.abspath(a.out), f"{model}.{recipe.replace(' ', '-')}.{seed}")
    log = os.path.join(directory, "events.jsonl")
    if not finished(log):
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, "job.yaml")
        with open(path, "w") as f:
            f.write(spec(a, model, recipe, seed, directory))
        if os.path.exists(log):
            os.remove(log)
        subprocess.run([a.trainer, "--spec", path, "--quiet"], check=True)
    return events(log)


def events(log):
    with open(log) as f:
        return [json.loads(line) for line in f]


def finished(log):
    return os.path.exists(log) and any(
        e["event"] == "finish" and e["reason"] == "completed" for e in events(log))


def validation(log):
    losses = [e["loss"] for e in log if e["event"] == "validation"]
    return losses[-1]


def mean_and_error(values):
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--trainer", required=True)
    p.add_argument("--corpus", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--models", nargs="+", default=["tiny-hybrid", "tiny-transformer"])
    p.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    p.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    p.add_argument("--steps", type=int, default=1500)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--sequence", type=int, default=256)
    p.add_argument("--validation-batches", type=int, default=32)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    a = p.parse_args()

    runs = [(m, r, s) for m in a.models for s in a.seeds for r in a.recipes]
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        logs = dict(zip(runs, pool.map(lambda r: run(a, *r), runs)))

    tokens = a.steps * a.batch * a.sequence
    print(f"{a.steps} steps of {a.batch} x {a.sequence} tokens = {tokens / 1e6:.2f} M tokens, "
          f"seeds {a.seeds}, lr {a.lr}, {a.validation_batches} validation batches")
    for model in a.models:
        start = next(e for e in logs[(model, a.recipes[0], a.seeds[0])] if e["event"] == "start")
        print(f"\n{model}: {start['parameters'] / 1e6:.2f} M parameters, "
              f"{tokens / start['parameters']:.1f} tokens per parameter")
        print(f"{'recipe':14} {'validation loss':>16} {'gap to bf16, nats':>24} {'percent':>9}"
              f" {'recovery':>9} {'tok/s':>8}")
        gaps = {}
        for recipe in a.recipes:
            losses = [validation(logs[(model, recipe, s)]) for s in a.seeds]
            base = [validation(logs[(model, "bf16", s)]) for s in a.seeds]
            gap, error = mean_and_error([x - y for x, y in zip(losses, base)])
            gaps[recipe] = gap
            speed = [next(e for e in logs[(model, recipe, s)] if e["event"] == "finish")
                     ["tokens_per_second"] for s in a.seeds]
            recovery = ""
            if recipe == "nvfp4+switch" and gaps.get("nvfp4", 0) > 0:
                recovery = f"{100 * (1 - gap / gaps['nvfp4']):.0f} %"
            # One seed has no spread to show.
            spread = "" if math.isnan(error) else f"+- {error:7.4f}"
            print(f"{recipe:14} {mean_and_error(losses)[0]:16.4f} {gap:13.4f} {spread:10}"
                  f" {100 * gap / mean_and_error(base)[0]:8.2f} % {recovery:>9}"
                  f" {sum(speed) / len(speed):8.0f}")
        print("single seeds: " + "; ".join(
            f"{r} " + ", ".join(f"{validation(logs[(model, r, s)]):.4f}" for s in a.seeds)
            for r in a.recipes))


if __name__ == "__main__":
    sys.exit(main())
