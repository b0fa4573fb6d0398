#!/usr/bin/env python3
"""Ranks on several cards: the same job of 200 steps, a small hybrid, with every way in which ranks exchange.

    tests/gpu/ranks.py BIN [RANKS=2] [STEPS=200]      BIN: the directory of nibble-trainer

Sums over ranks are in rank order, so the losses of all steps have the same bits moved by copy engines, by NCCL's
kernels and through the hosts' memory, and at every level of sharding, with several micro-batches and other packed
formats, too; with NCCL's own order of sums they are close. One rank through NCCL has the bits of one rank alone. Then
a rank is killed in mid-run: the others must end by themselves and name it, and the job resumes with the same bits.
Runs in a new directory below the current one; exits 1 if anything is not so. Prints a short table last.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

JOB = """name: ranks
model: tiny-hybrid
recipe: %(recipe)s
data: {train: [%(corpus)s], sequence: 256}
training: {steps: %(steps)d, batch: %(batch)d, micro_batch: %(micro_batch)d, seed: 5}
optimizer: {lr: 0.002, warmup_steps: 20}
metrics: {log_every: 1}
checkpoints: {every: 20, keep_last: 3}
resources: {ranks: %(ranks)d, device: cuda, collectives: %(collectives)s, reduction: %(reduction)s, sharding: %(sharding)s,
  exchange: %(exchange)s}
output: {directory: %(output)s}
"""


def events(output):
    found = []
    path = output / "events.jsonl"
    if path.exists():
        for line in path.read_text().split("\n")[:-1]:
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                pass  # a killed writer's last line
    return found


def losses(all_events):
    """By step, the last one logged."""
    return {e["step"]: e["loss"] for e in all_events if e.get("event") == "step"}


def rank_process(launcher, rank):
    """The process of a rank that this process has started."""
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
        except (OSError, IndexError):
            continue
        if int(parent) == launcher and b"--rank" in words and words[words.index(b"--rank") + 1] == b"%d" % rank:
            return int(entry.name)
    return None


def main():
    trainer = pathlib.Path(sys.argv[1]).resolve() / "nibble-trainer"
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    root = pathlib.Path(tempfile.mkdtemp(prefix="gpu-ranks-", dir=".")).resolve()
    words = pathlib.Path(__file__).read_text().split()
    corpus = root / "corpus.txt"
    corpus.write_text("\n\n".join(
        " ".join(words[(7 * i + 3 * j * j) % len(words)] for j in range(400)) for i in range(300)))
    wrong = []

    def start(name, world, collectives, reduction="rank_order", sharding="optimizer", recipe="nvfp4", micro_batch=0,
              exchange="auto"):
        output = root / name
        spec = root / f"{name}.yaml"
        spec.write_text(JOB % {"corpus": corpus, "steps": steps, "batch": 8 * ranks, "ranks": world, "output": output,
                               "collectives": collectives, "reduction": reduction,
                               "sharding": sharding, "recipe": recipe, "micro_batch": micro_batch, "exchange": exchange})
        log = open(root / f"{name}.log", "a")
        return output, subprocess.Popen([str(trainer), "--spec", str(spec), "--quiet"], stdout=log, stderr=log)

    def run(name, *what):
        output, process = start(name, *what)
        code = process.wait(timeout=300)
        if code != 0:
            wrong.append(f"{name}: exit {code}: {(root / (name + '.log')).read_text().strip()[-1000:]}")
        return events(output)

    rows = []

    def compare(name, all_events, expected):
        found = losses(all_events)
        used = next((e["collectives"] for e in all_events if e.get("event") == "start"), "-")
        rate = next((e["tokens_per_second"] for e in reversed(all_events) if e.get("event") == "finish"), 0.0)
        same = "-"
        if expected is not None:
            different = [step for step in range(steps) if found.get(step) != expected.get(step)]
            same = "all" if not different else f"{steps - len(different)} of {steps}"
        rows.append((name, used, f"{rate:.0f}", f"{found.get(steps - 1, float('nan')):.6f}", same))
        return found, same

    staged, _ = compare("staged", run("staged", ranks, "staged"), None)
    found, same = compare("nccl", run("nccl", ranks, "nccl"), staged)
    if same != "all":
        wrong.append("nccl: its losses are not those of the staged run")
    _, same = compare("nccl-kernels", run("nccl-kernels", ranks, "nccl", "rank_order", "optimizer", "nvfp4", 0, "nccl"),
                      staged)
    if same != "all":
        wrong.append("nccl-kernels: its losses are not those of the staged run")
    found, _ = compare("nccl-order", run("nccl-order", ranks, "nccl", "nccl"), staged)
    if not found or abs(found[steps - 1] / staged[steps - 1] - 1) > 0.01:
        wrong.append("nccl-order: its last loss is not within 1 % of the others'")
    for level in ("gradients", "weights"):
        _, same = compare(level, run(level, ranks, "nccl", "rank_order", level), staged)
        if same != "all":
            wrong.append(f"{level}: its losses are not those of level optimizer")
    # Two micro-batches in a rank's share.
    for recipe in ("nvfp4", "nvfp4-base", "mxfp8", "bf16"):
        expected, _ = compare(f"{recipe}-optimizer", run(f"{recipe}-optimizer", ranks, "nccl", "rank_order",
                                                         "optimizer", recipe, 4), None)
        for level in ("gradients", "weights"):
            name = f"{recipe}-{level}"
            _, same = compare(name, run(name, ranks, "nccl", "rank_order", level, recipe, 4), expected)
            if same != "all":
                wrong.append(f"{name}: its losses are not those of level optimizer")
    alone, _ = compare("one-rank", run("one-rank", 1, "auto"), None)
    _, same = compare("one-nccl", run("one-nccl", 1, "nccl"), alone)
    if same != "all":
        wrong.append("one-nccl: its losses are not those of one rank alone")

    # A rank is killed between two checkpoints.
    took = None
    if ranks > 1:
        output, process = start("killed", ranks, "nccl")
        deadline = time.monotonic() + 200
        while max(losses(events(output)), default=-1) < steps // 2 and time.monotonic() < deadline:
            if process.poll() is not None:
                break
            time.sleep(0.02)
        victim = rank_process(process.pid, ranks - 1)
        if victim is None:
            wrong.append("killed: no process of the last rank was found")
            process.kill()
        else:
            os.kill(victim, signal.SIGKILL)
            begin = time.monotonic()
            try:
                code = process.wait(timeout=60)
                took = time.monotonic() - begin
            except subprocess.TimeoutExpired:
                wrong.append("killed: the other ranks have not ended after 60 s")
                process.kill()
                process.wait()
            log = (root / "killed.log").read_text()
            named = [line for line in log.splitlines() if " on rank " in line and f"rank {ranks - 1}" in line]
            if took is not None and not named:
                wrong.append(f"killed: the lost rank is not named: exit {code}: {log.strip()[-1000:]}")
        _, same = compare("killed", run("killed", ranks, "nccl"), staged)
        if same != "all":
            wrong.append("killed: the resumed run's losses are not those of the others")

    head = ("run", "collectives of rank 0", "tokens/s", "last loss", "same bits")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    if took is not None:
        print(f"after a rank was killed the others ended in {took:.2f} s")
    for what in wrong:
        print("WRONG:", what)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
