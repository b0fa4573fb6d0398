#!/usr/bin/env python3
"""Ranks on cards: the same job of 200 steps, a small hybrid, with every way in which ranks exchange.

    tests/gpu/ranks.py BIN [RANKS=2] [STEPS=200]      BIN: the directory of nibble-trainer

Sums over ranks are in rank order, so the losses of all steps have the same bits moved by copy engines, by NCCL's
kernels and through the hosts' memory, and at every level of sharding, with several micro-batches and other packed
formats, too, and of a model with several buckets, whose exchanges are moved by both; with NCCL's own order of sums they
are close. One rank through NCCL has the bits of one rank alone. Then a rank is killed in mid-run: the others must end by
themselves and name it, and the job resumes with the same bits.

RANKS=1: on one card. One rank through NCCL has the bits of one without; two and four ranks that share the card, through
the host's memory, have the same bits at every level, packed or not, and the mean of their losses is within 1 % of the CPU's.

Runs in a new directory below the current one; exits 1 if anything is not so. Prints a short table last.
"""

import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

from runs import Checks, events, losses, new_directory, trainers, write_corpus

JOB = """name: ranks
model: %(model)s
recipe: %(recipe)s
data: {train: [%(corpus)s], sequence: 256}
training: {steps: %(steps)d, batch: %(batch)d, micro_batch: %(micro_batch)d, seed: 5}
optimizer: {lr: 0.002, warmup_steps: 20}
metrics: {log_every: 1}
checkpoints: {every: 20, keep_last: 3}
resources: {ranks: %(ranks)d, device: %(device)s, collectives: %(collectives)s, reduction: %(reduction)s, sharding: %(sharding)s,
  exchange: %(exchange)s}
output: {directory: %(output)s}
"""
USUAL = {"model": "tiny-hybrid", "recipe": "nvfp4", "micro_batch": 0, "device": "cuda", "collectives": "nccl", "reduction": "rank_order",
         "sharding": "optimizer", "exchange": "auto"}
LEVELS = ("gradients", "weights")


class Runs:
    def __init__(self, trainer, steps):
        self.trainer, self.steps = trainer, steps
        self.root = new_directory("ranks")
        self.corpus = write_corpus(self.root)
        self.checks = Checks()
        self.rows = []

    def start(self, name, ranks, batch, **what):
        output, spec = self.root / name, self.root / f"{name}.yaml"
        spec.write_text(JOB % {**USUAL, "corpus": self.corpus, "steps": self.steps, "batch": batch, "ranks": ranks,
                               "output": output, **what})
        log = open(self.root / f"{name}.log", "a")
        return output / "events.jsonl", subprocess.Popen([str(self.trainer), "--spec", str(spec), "--quiet"], stdout=log,
                                                         stderr=log)

    def run(self, name, ranks, batch, like=None, **what):
        """The losses by step; `like`: other losses, which have to be the same."""
        log, process = self.start(name, ranks, batch, **what)
        code = process.wait(timeout=300)
        self.checks.expect(code == 0, f"{name}: exit {code}: {(self.root / (name + '.log')).read_text().strip()[-1000:]}")
        said = events(log)
        found = losses(said)
        used = next((e["collectives"] for e in said if e.get("event") == "start"), "-")
        rate = next((e["tokens_per_second"] for e in reversed(said) if e.get("event") == "finish"), 0.0)
        same = "-"
        if like is not None:
            different = sum(found.get(step) != like.get(step) for step in range(self.steps))
            same = "all" if different == 0 else f"{self.steps - different} of {self.steps}"
        self.rows.append((name, used, f"{rate:.0f}", f"{found.get(self.steps - 1, float('nan')):.6f}", same))
        return found

    def same(self, name, ranks, batch, like, of, **what):
        found = self.run(name, ranks, batch, like, **what)
        self.checks.expect(len(like) == self.steps and found == like, f"{name}: its losses are not those of {of}")

    def finish(self, *lines):
        head = ("run", "collectives of rank 0", "tokens/s", "last loss", "same bits")
        widths = [max(len(row[i]) for row in [head, *self.rows]) for i in range(len(head))]
        for row in [head, *self.rows]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        for line in lines:
            print(line)
        return self.checks.finish()


def one_card(runs):
    alone = runs.run("one-rank", 1, 8, collectives="auto")
    runs.same("one-nccl", 1, 8, alone, "one rank without")
    for ranks in (2, 4):
        for recipe in ("nvfp4", "bf16"):
            name, batch = f"{recipe}-{ranks}", 4 * ranks
            staged = runs.run(f"{name}-staged", ranks, batch, recipe=recipe, collectives="staged")
            for level in LEVELS:
                runs.same(f"{name}-{level}", ranks, batch, staged, "level optimizer", recipe=recipe, collectives="staged",
                          sharding=level)
            cpu = runs.run(f"{name}-cpu", ranks, batch, recipe=recipe, collectives="auto", device="cpu")
            means = [statistics.mean(found.values()) if found else float("nan") for found in (staged, cpu)]
            runs.checks.expect(abs(means[0] / means[1] - 1) <= 0.01, f"{name}: mean losses {means}: the limit is 1 %")
    return runs.finish()


def several_cards(runs, ranks):
    batch = 8 * ranks
    staged = runs.run("staged", ranks, batch, collectives="staged")
    runs.same("nccl", ranks, batch, staged, "the staged run")
    runs.same("nccl-kernels", ranks, batch, staged, "the staged run", exchange="nccl")
    found = runs.run("nccl-order", ranks, batch, staged, reduction="nccl")
    last = runs.steps - 1
    runs.checks.expect(last in found and last in staged and abs(found[last] / staged[last] - 1) <= 0.01,
                       "nccl-order: its last loss is not within 1 % of the others'")
    for level in LEVELS:
        runs.same(level, ranks, batch, staged, "level optimizer", sharding=level)
    # Two micro-batches in a rank's share.
    for recipe in ("nvfp4", "nvfp4-base", "mxfp8", "bf16"):
        expected = runs.run(f"{recipe}-optimizer", ranks, batch, recipe=recipe, micro_batch=4)
        for level in LEVELS:
            runs.same(f"{recipe}-{level}", ranks, batch, expected, "level optimizer", recipe=recipe, micro_batch=4, sharding=level)
    small = runs.run("small-kernels", ranks, batch, model="small-transformer", exchange="nccl")
    for level in ("optimizer", *LEVELS):
        runs.same(f"small-{level}", ranks, batch, small, "NCCL's kernels", model="small-transformer", sharding=level)
    alone = runs.run("one-rank", 1, batch, collectives="auto")
    runs.same("one-nccl", 1, batch, alone, "one rank alone")

    # A rank is killed between two checkpoints.
    log, process = runs.start("killed", ranks, batch)
    deadline = time.monotonic() + 200
    while max(losses(events(log)), default=-1) < runs.steps // 2 and time.monotonic() < deadline:
        if process.poll() is not None:
            break
        time.sleep(0.02)
    victim = trainers(runs.root / "killed").get(ranks - 1, (None, None))[0]
    ended = []
    if victim is None:
        runs.checks.expect(False, "killed: no process of the last rank was found")
        process.kill()
    else:
        os.kill(victim, signal.SIGKILL)
        begin = time.monotonic()
        try:
            code = process.wait(timeout=60)
            ended = [f"after a rank was killed the others ended in {time.monotonic() - begin:.2f} s"]
            said = (runs.root / "killed.log").read_text()
            named = [line for line in said.splitlines() if " on rank " in line and f"rank {ranks - 1}" in line]
            runs.checks.expect(named, f"killed: the lost rank is not named: exit {code}: {said.strip()[-1000:]}")
        except subprocess.TimeoutExpired:
            runs.checks.expect(False, "killed: the other ranks have not ended after 60 s")
            process.kill()
            process.wait()
    runs.same("killed", ranks, batch, staged, "the others, resumed")
    return runs.finish(*ended)


def main():
    trainer = pathlib.Path(sys.argv[1]).resolve() / "nibble-trainer"
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    runs = Runs(trainer, int(sys.argv[3]) if len(sys.argv) > 3 else 200)
    return one_card(runs) if ranks == 1 else several_cards(runs, ranks)


if __name__ == "__main__":
    sys.exit(main())
