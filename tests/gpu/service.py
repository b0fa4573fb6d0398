#!/usr/bin/env python3
"""The whole service on one card: a cluster, a job, two changes of its recipe in mid-run, a rank that is killed again and again.

    tests/gpu/service.py BIN [KILLS=20]      BIN: the directory of nibble, nibble-coordinator, nibble-worker, nibble-trainer

Runs in a new directory below the current one. Fprop is switched to BF16 and, after the kills, to FP8. Then the same
job runs alone, undisturbed, with the changes in its spec at the steps where they took effect: the losses of all steps
have the same bits. Exits 1 if anything is not so. Prints a short table last: tokens per second before, between and after
the changes, steps and seconds from a command to its effect, seconds from a kill to the next step.
"""

import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

from runs import Checks, command_line, events, losses, new_directory, run_alone, write_corpus

STEPS = 4500

JOB = """name: card
model: tiny-hybrid
recipe: nvfp4
data: {train: [%(corpus)s], sequence: 256, validation_fraction: 0.1}
training: {steps: %(steps)d, batch: 16, validate_every: 500, validation_batches: 2, seed: 3}
optimizer: {lr: 0.002, warmup_steps: 20}
metrics: {log_every: 1, precision_every: 100}
checkpoints: {every: 50, keep_last: 3}
resources: {ranks: 1, device: cuda}
"""


def main():
    programs = pathlib.Path(sys.argv[1]).resolve()
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    root = new_directory("service")
    nibble = command_line(programs, root)
    corpus = write_corpus(root)
    spec = root / "job.yaml"
    spec.write_text(JOB % {"corpus": corpus, "steps": STEPS})

    checks = Checks()
    expect = checks.expect

    nibble("cluster", "up", "--workers", "1", "--slots", "1", "--device", "gpu")
    try:
        job = nibble("job", "submit", str(spec)).split()[-1]
        nibble("job", "wait", job, "--step", "600", "--timeout", "120s")
        log = next(path for path in root.rglob("events.jsonl") if job in str(path))

        def change(setting, revision):
            seen = max(losses(events(log)))
            begun = time.monotonic()
            nibble("recipe", "set", job, setting, "--reason", "while it trains")
            said = time.monotonic() - begun
            changed = None
            while changed is None and time.monotonic() - begun < 60:
                steps = [e for e in events(log) if e.get("event") == "step" and e.get("revision") == revision]
                changed = steps[0]["step"] if steps else None
            expect(changed is not None, f"the change to {setting} did not take effect")
            return seen, changed, said, time.monotonic() - begun

        changes = {"bf16": change("fprop=bf16", 2)}

        recoveries = []
        for kill in range(kills):
            # At steps that are not those of checkpoints, all after the change.
            nibble("job", "wait", job, "--step", str(1000 + kill * 1900 // kills), "--timeout", "120s")
            # Of this cluster: others may run on the machine.
            pids = subprocess.run(["pgrep", "-f", f"nibble-trainer.*{root}.*--rank|nibble-trainer.*--rank.*{root}"],
                                  capture_output=True, text=True).stdout.split()
            expect(len(pids) == 1, f"trainer processes at kill {kill}: {pids}")
            resumes = sum(e.get("event") == "resume" for e in events(log))
            killed = time.monotonic()
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)

            def steps_again():
                run = events(log)
                at = [i for i, e in enumerate(run) if e.get("event") == "resume"]
                return len(at) > resumes and any(e.get("event") == "step" for e in run[at[-1]:])

            while not steps_again() and time.monotonic() - killed < 120:
                time.sleep(0.05)
            recoveries.append(time.monotonic() - killed)
        nibble("job", "wait", job, "--step", "3000", "--timeout", "120s")
        changes["fp8-tensor"] = change("fprop=fp8-tensor", 3)
        nibble("job", "wait", job, "--timeout", "300s")
        run = events(log)
        resumes = sum(e.get("event") == "resume" for e in run)
        expect(resumes == kills, f"{resumes} resumes in the event log after {kills} kills")
        expect(len(losses(run)) == STEPS, f"{len(losses(run))} steps, not {STEPS}")
        print(nibble("recipe", "history", job))
        print(nibble("checkpoint", "list", job))
        # The model that was trained, decoded on the card and on the CPU.
        store = next(path for path in root.rglob("checkpoints") if job in str(path) and path.is_dir())
        written = {}
        for device in ("cuda", "cpu"):
            said_json = json.loads(nibble("generate", "--from", str(store), "--prompt", "import", "--temperature", "0",
                                          "--precision", "fp32", "--max-tokens", "64", "--device", device, "-o", "json"))
            written[device] = said_json
        tokens = {device: one["samples"][0]["tokens"] for device, one in written.items()}
        alike = sum(a == b for a, b in zip(tokens["cuda"], tokens["cpu"]))
        expect(alike == len(tokens["cpu"]) > 0, f"generate: {alike} of {len(tokens['cpu'])} tokens alike")
    finally:
        nibble("cluster", "down", check=False)

    alone = root / "alone.yaml"
    alone.write_text(spec.read_text() +
                     f"output: {{directory: {root / 'alone'}}}\n"
                     "changes:\n" + "".join(f"  - {{at: step:{changed}, set: {{fprop: {to}}}}}\n"
                                            for to, (_, changed, _, _) in changes.items()))
    failed = run_alone(programs, alone)
    expect(not failed, f"the run alone: {failed}")
    expected = losses(events(root / "alone" / "events.jsonl"))
    actual = losses(run)
    differ = [step for step in expected if expected[step] != actual.get(step)]
    expect(not differ and len(expected) == STEPS, f"losses differ from step {differ[:1]} on")

    rate = lambda revision: statistics.median(
        e["tokens_per_second"] for e in run if e.get("event") == "step" and e.get("revision") == revision)
    for to, (seen, changed, said, effect) in changes.items():
        print(f"{f'Fprop to {to}: steps at command, effect':40}{seen}, {changed}")
        print(f"{'  answered, in effect after':40}{said:.3f} s, {effect:.3f} s")
    print(f"tokens/s, Fprop NVFP4, BF16, FP8        {rate(1):.0f}, {rate(2):.0f}, {rate(3):.0f}")
    print(f"ranks killed, seconds to the next step  {kills}, median {statistics.median(recoveries):.2f}, "
          f"at most {max(recoveries):.2f}")
    print(f"losses with the bits of a run alone     {len(expected) - len(differ)} of {STEPS}")
    print(f"tokens generated alike on card and CPU  {alike} of {len(tokens['cpu'])}")
    paths = sorted({(e["gemm"], e["path"]) for e in run if e.get("event") == "products"})
    print("paths of products                       " + ", ".join(f"{gemm}: {path}" for gemm, path in paths))
    expect(len(paths) > 3, "no path of a product changed with the recipe")
    planned = [e["total"] for e in run if e.get("event") == "memory"]
    peak = [e["memory_peak"] for e in run if e.get("event") == "finish"]
    expect(planned and peak, "no plan of memory, or no peak")
    print(f"memory planned and taken, MiB           {max(planned) / 2**20:.1f}, {peak[-1] / 2**20:.1f}")
    expect(abs(peak[-1] / max(planned) - 1) <= 0.03, "the plan of memory is more than 3 % from what was taken")
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())
