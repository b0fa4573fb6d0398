#!/usr/bin/env python3
"""Losses of every recipe preset on a card beside those on the CPU: the same job of 200 steps of a small model on both.

    tests/gpu/presets.py BIN [STEPS=200] [MODEL=tiny-hybrid]      BIN: the directory of nibble and nibble-trainer

GEMMs add in another order on a card, so losses are close and not equal; the bits of quantised operands are
compared by gpu_check. After 200 steps another order alone moves the loss of one run by up to a per cent or two, so each
preset runs with four seeds. Prints, per preset, the means of the losses of the last 20 steps on both, how far they are
apart and the standard error of that, the largest relative difference of the losses of one step, and how the GEMMs ran on
the card. Exits 1 if the means of a preset differ by more than 1 %, or if a run did not learn.
"""

import concurrent.futures
import os
import pathlib
import statistics
import subprocess
import sys

from runs import events, losses, new_directory, run_alone, write_corpus

BOUND = 0.01
SEEDS = (5, 6, 7, 8)

JOB = """name: preset
model: %(model)s
recipe: %(recipe)s
data: {train: [%(corpus)s], sequence: 256}
training: {steps: %(steps)d, batch: 8, seed: %(seed)d}
optimizer: {lr: 0.002, warmup_steps: %(warmup)d}
metrics: {log_every: 1}
resources: {ranks: 1, threads: %(threads)d, device: %(device)s}
output: {directory: %(output)s}
"""


def main():
    programs = pathlib.Path(sys.argv[1]).resolve()
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    model = sys.argv[3] if len(sys.argv) > 3 else "tiny-hybrid"
    root = new_directory("presets")
    listed = subprocess.run([str(programs / "nibble"), "recipe", "presets"], capture_output=True, text=True, check=True)
    presets = [line.split()[0] for line in listed.stdout.splitlines()]
    corpus = write_corpus(root)
    at_once = max(1, (os.cpu_count() or 1) // 4)

    def run(recipe, seed, device):
        output = root / f"{recipe}-{seed}-{device}"
        spec = root / f"{recipe}-{seed}-{device}.yaml"
        spec.write_text(JOB % {"model": model, "recipe": recipe, "corpus": corpus, "steps": steps, "warmup": steps // 10,
                               "threads": 4, "seed": seed, "device": device, "output": output})
        failed = run_alone(programs, spec)
        if failed:
            return failed, set()
        log = events(output / "events.jsonl")
        return losses(log), {e["path"] for e in log if e.get("event") == "products"}

    with concurrent.futures.ThreadPoolExecutor(at_once) as cpu, concurrent.futures.ThreadPoolExecutor(1) as card:
        running = {(recipe, seed): (cpu.submit(run, recipe, seed, "cpu"), card.submit(run, recipe, seed, "cuda"))
                   for recipe in presets for seed in SEEDS}

    wrong = []
    print(f"{'preset':15} {'cpu':>8} {'card':>8} {'apart':>8} {'error':>8} {'most':>8}  products on the card")
    for recipe in presets:
        means, most, paths = [], 0.0, set()
        for seed in SEEDS:
            (expected, _), (actual, found) = (one.result() for one in running[recipe, seed])
            paths |= found
            failures = [one for one in (expected, actual) if isinstance(one, str)]
            if failures:
                wrong.append(f"{recipe}, seed {seed}: {failures[0]}")
                continue
            if sorted(expected) != list(range(steps)) or sorted(actual) != list(range(steps)):
                wrong.append(f"{recipe}, seed {seed}: {len(expected)} and {len(actual)} steps, not {steps}")
                continue
            means.append([statistics.mean(one[step] for step in range(steps - 20, steps))
                          for one in (expected, actual)])
            most = max(most, *(abs(actual[step] / expected[step] - 1) for step in range(steps)))
            if means[-1][1] > 0.8 * actual[0]:
                wrong.append(f"{recipe}, seed {seed}: it did not learn")
        if len(means) < len(SEEDS):
            continue
        on_cpu, on_card = (statistics.mean(column) for column in zip(*means))
        apart = [card / cpu - 1 for cpu, card in means]
        error = statistics.stdev(apart) / len(apart) ** 0.5
        print(f"{recipe:15} {on_cpu:8.4f} {on_card:8.4f} {100 * statistics.mean(apart):7.2f}% {100 * error:7.2f}% "
              f"{100 * most:7.2f}%  " + ", ".join(sorted(paths)))
        if abs(statistics.mean(apart)) > BOUND:
            wrong.append(f"{recipe}: the last losses differ by {100 * statistics.mean(apart):.2f} %")
    for what in wrong:
        print("WRONG:", what)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
