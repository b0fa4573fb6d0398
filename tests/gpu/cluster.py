#!/usr/bin/env python3
"""A coordinator and two daemons on one machine, each with half of the cards, and one job across all of them.

    tests/gpu/cluster.py BIN [CARDS=2] [DEVICE=cuda] [KEEP=0]
        BIN: the directory of nibble, nibble-coordinator, nibble-worker, nibble-trainer; CARDS: an even number; DEVICE cpu: a
        rehearsal; KEEP: nibble-worker --keep-ranks, in seconds, with slots that divide the cores (--pin cores)

First a timeline of two steps (`nibble job trace`) has to have every rank's computation and communication, and every rank
has to run on the cores that `nibble worker describe` says. The job's forward pass switches to BF16 in mid-run; then a rank
is killed, a rank is stopped (SIGSTOP), and a daemon is killed and started again. All losses have the bits of a run alone,
without a cluster, with the change in its spec. Then an elastic job shrinks to half of the cards when a worker is drained,
and grows back. Runs in a new directory below the current one. Exits 1 if anything is not so. Prints a short table last:
steps and seconds from the command to its effect; for each fault the seconds until the coordinator knew it, and until the
next step was done, and how many processes of ranks are the same before and after. With KEEP, after a rank was killed or
has hung, that has to be all but that one.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request

from runs import Checks, command_line, events_below, losses, new_directory, run_alone, trainers, write_corpus

STEPS = 8000
HANG_SECONDS = 5

JOB = """name: %(name)s
model: tiny-hybrid
recipe: nvfp4
data: {train: [%(corpus)s], sequence: %(sequence)d}
training: {steps: %(steps)d, batch: %(batch)d, seed: 3}
optimizer: {lr: 0.002, warmup_steps: 20}
metrics: {log_every: 1}
checkpoints: {every: 50, keep_last: 3}
resources: {ranks: %(cards)d, device: %(device)s%(elastic)s}
"""


# Figure of nvidia-smi, our metric, units of ours per unit of theirs, and how far they may be apart: relative, absolute.
CARD_FIGURES = [
    ("memory.total", "nibble_card_memory_bytes", 2**20, 0, 2**20),
    ("memory.used", "nibble_card_memory_used_bytes", 2**20, 0.02, 700 * 2**20),
    ("power.draw.instant", "nibble_card_power_watts", 1, 0.3, 30),
    ("power.limit", "nibble_card_power_limit_watts", 1, 0, 0.01),
    ("temperature.gpu", "nibble_card_temperature_celsius", 1, 0, 3),
    ("clocks.sm", 'nibble_card_clock_hertz{clock="sm"}', 1e6, 0.1, 0),
    ("clocks.max.sm", 'nibble_card_clock_limit_hertz{clock="sm"}', 1e6, 0, 0),
]


def metrics_of(page, card_ids):
    """By card: figures by metric and its labels but the card's."""
    found = [{} for _ in card_ids]
    for line in page.split("\n"):
        if not line.startswith("nibble_card_"):
            continue
        series, value = line.rsplit(" ", 1)
        name, _, labels = series.partition("{")
        labels = dict(label.split("=", 1) for label in labels.rstrip("}").split(",") if label)
        card = labels.pop("card").strip('"')
        rest = ",".join(f"{key}={text}" for key, text in sorted(labels.items()))
        if card in card_ids:
            found[card_ids.index(card)][name + (f"{{{rest}}}" if rest else "")] = float(value)
    return found


def compare_cards(worker):
    """The worker's latest sample of its cards beside nvidia-smi's: what differs, and a line for each figure."""
    page = urllib.request.urlopen(f"http://{worker['identity']['http_address']}/metrics").read().decode()
    query = subprocess.run(["nvidia-smi", "--format=csv,noheader,nounits",
                            "--query-gpu=index,uuid," + ",".join(figure for figure, *_ in CARD_FIGURES)],
                           capture_output=True, text=True, check=True).stdout.strip().split("\n")
    ids = sorted({part.split('card="')[1].split('"')[0] for part in page.split("\n")
                  if part.startswith("nibble_card_info{")})
    differences = [] if ids else [f"{worker['identity']['name']} has no figures of cards"]
    lines = []
    for card, figures in zip(ids, metrics_of(page, ids)):
        theirs = next((row.split(", ") for row in query if card in row.split(", ")[:2]), None)
        if theirs is None:
            differences.append(f"nvidia-smi has no card {card}")
            continue
        for (_, metric, unit, relative, absolute), text in zip(CARD_FIGURES, theirs[2:]):
            value, said = figures.get(metric), float(text) * unit
            if value is None or abs(value - said) > relative * said + absolute:
                differences.append(f"card {card}: {metric} {value}, nvidia-smi {said}")
            lines.append(f"card {card} {metric:42} {value or 0:>16.6g}   nvidia-smi {said:>16.6g}")
    return differences, lines


def pins_of(worker):
    """The cores of each pinned slot."""
    found = []
    for slot in worker["identity"].get("topology", {}).get("slots", []):
        ranges = [part.split("-") for part in slot.get("cores", "").split(",") if part]
        if ranges:
            found.append({core for ends in ranges for core in range(int(ends[0]), int(ends[-1]) + 1)})
    return found


def main():
    programs = pathlib.Path(sys.argv[1]).resolve()
    cards = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    device = sys.argv[3] if len(sys.argv) > 3 else "cuda"
    keep = sys.argv[4] if len(sys.argv) > 4 else "0"
    steps = STEPS if device == "cuda" else 400
    if cards < 2 or cards % 2 != 0:
        sys.exit(f"CARDS: {cards} is not an even number from 2 on")
    root = new_directory("cluster")
    nibble = command_line(programs, root)
    corpus = write_corpus(root)

    def write_spec(name, elastic=""):
        spec = root / f"{name}.yaml"
        spec.write_text(JOB % {"name": name, "corpus": corpus, "steps": steps, "cards": cards, "batch": 4 * cards,
                               "sequence": 256 if device == "cuda" else 64, "device": device, "elastic": elastic})
        return spec

    checks, table = Checks(), []
    expect, wait_until = checks.expect, checks.wait_until

    def ended_attempts(job):
        return sum(e["kind"] == "JOB_EVENT_KIND_ATTEMPT" and " ended, " in e["text"]
                   for e in json.loads(nibble("job", "events", job, "-o", "json"))["events"])

    def resumed_steps(job, since):
        """Whether a run that resumed after `since` (of the event log) has made a step."""
        later = [e for e in events_below(root, job) if e["time"] > since]
        at = [i for i, e in enumerate(later) if e.get("event") == "resume"]
        return bool(at) and any(e.get("event") == "step" for e in later[at[-1]:])

    def last_time(job):
        return events_below(root, job)[-1]["time"]

    def processes():
        return {rank: process for rank, (process, _) in trainers(root).items()}

    def check_trace(job):
        """Prints, by rank, what a step computed, communicated and waited."""
        path = root / "trace.json"
        nibble("job", "trace", job, "--steps", "2", "-o", str(path))
        trace = json.loads(path.read_text())
        trace = trace["traceEvents"] if isinstance(trace, dict) else trace
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["ph"] == "M" and e["name"] == "thread_name"}
        spans = {}
        for event in trace:
            if event["ph"] == "X":
                spans.setdefault((event["pid"], names.get((event["pid"], event["tid"]), "")), []).append(event["dur"])
        for rank in range(cards):
            sums = {name: sum(spans.get((rank, name), [])) / 2e3 for name in ("compute", "communication", "gaps of compute")}
            print(f"trace, rank {rank}: a step has " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in sums.items()))
            expect(sums["compute"] > 0 and sums["communication"] > 0, f"the trace lacks rank {rank}'s {sums}")

    def check_cores():
        """Ranks run on the cores of their slots; a slot that is not pinned lets them run on all that its daemon has."""
        pins = [pin for i in (1, 2) for pin in pins_of(json.loads(nibble("worker", "describe", f"worker-{i}", "-o", "json")))]
        for rank, (process, daemon) in sorted(trainers(root).items()):
            mine, theirs = os.sched_getaffinity(process), os.sched_getaffinity(daemon)
            print(f"rank {rank}: {len(mine)} cores, its daemon {len(theirs)}, {len(pins)} slots of {cards} are pinned")
            allowed = pins or [theirs]
            expect(mine in allowed, f"rank {rank} runs on {sorted(mine)}, none of {[sorted(cores) for cores in allowed]}")

    def fault(job, name, strike, repair=None, lost=None):
        nibble("job", "wait", job, "--step", str(steps * (3 + 3 * len(table)) // 20), "--timeout", "300s")
        attempts, since, before = ended_attempts(job), last_time(job), processes()
        begun = time.monotonic()
        strike()
        known = wait_until(lambda: ended_attempts(job) > attempts, 120, f"{name}: the attempt's end")
        if repair is not None:
            repair()
        wait_until(lambda: resumed_steps(job, since), 120, f"{name}: a step after it")
        recovered = time.monotonic() - begun
        after = processes()
        same = sum(process == after.get(rank) for rank, process in before.items())
        if lost is not None and keep != "0":
            expect(same == cards - lost, f"{name}: {same} of {cards} ranks kept their process, not {cards - lost}")
        table.append((name, known, recovered, same))

    nibble("cluster", "up", "--workers", "2", "--slots", str(cards // 2), "--device", device,
           f"--worker-flag=--hang-seconds={HANG_SECONDS}", f"--worker-flag=--keep-ranks={keep}",
           *(["--worker-flag=--pin=cores"] if keep != "0" else []),
           "--coordinator-flag=--grow-interval-ms=1000")
    try:
        print(nibble("worker", "list"))
        if device == "cuda":
            print(nibble("worker", "describe", "worker-2"))
        job = nibble("job", "submit", str(write_spec("across"))).split()[-1]
        nibble("job", "wait", job, "--step", str(steps // 10), "--timeout", "120s")
        if device == "cuda":
            # The daemon samples every five seconds.
            for worker in json.loads(nibble("worker", "list", "-o", "json"))["workers"]:
                compared = []

                def agree():
                    compared[:] = compare_cards(worker)
                    return not compared[0]

                wait_until(agree, 15, f"the figures of the cards of {worker['identity']['name']}")
                checks.wrong.extend(compared[0])
                print("\n".join(compared[1]))
        check_cores()
        check_trace(job)
        seen = max(losses(events_below(root, job)))
        begun = time.monotonic()
        nibble("recipe", "set", job, "fprop=bf16", "--reason", "while it trains")
        changed = []

        def took_effect():
            changed[:] = [e["step"] for e in events_below(root, job)
                          if e.get("event") == "step" and e.get("revision") == 2][:1]
            return changed

        wait_until(took_effect, 60, "the change of the recipe")
        effect = time.monotonic() - begun

        def kill(rank, with_signal):
            return lambda: os.kill(trainers(root)[rank][0], with_signal)

        fault(job, "a rank of the second daemon killed", kill(cards - 1, signal.SIGKILL), lost=1)
        fault(job, "rank 0 killed", kill(0, signal.SIGKILL), lost=1)
        fault(job, f"a rank stopped (hang after {HANG_SECONDS} s)", kill(cards - 1, signal.SIGSTOP), lost=1)
        fault(job, "the second daemon killed, started again",
              lambda: os.kill(trainers(root)[cards - 1][1], signal.SIGKILL), lambda: nibble("cluster", "up"))
        nibble("job", "wait", job, "--timeout", "300s")
        run = events_below(root, job)
        print(nibble("job", "events", job))

        elastic = nibble("job", "submit", str(write_spec("elastic", f", allowed_ranks: [{cards // 2}, {cards}]")))
        elastic = elastic.split()[-1]

        def world_is(size):
            ranks = [e for e in events_below(root, elastic) if e.get("event") in ("start", "resume", "step")]
            starts = [i for i, e in enumerate(ranks) if "ranks" in e]
            return bool(starts) and ranks[starts[-1]]["ranks"] == size and ranks[-1]["event"] == "step"

        wait_until(lambda: world_is(cards), 120, f"the elastic job has {cards} ranks")
        nibble("job", "wait", elastic, "--step", str(steps // 10), "--timeout", "120s")
        begun = time.monotonic()
        nibble("worker", "drain", "worker-2")
        wait_until(lambda: world_is(cards // 2), 120, f"the elastic job has {cards // 2} ranks")
        table.append((f"elastic: {cards} to {cards // 2} ranks", None, time.monotonic() - begun, None))
        begun = time.monotonic()
        nibble("worker", "uncordon", "worker-2")
        wait_until(lambda: world_is(cards), 120, f"the elastic job has {cards} ranks again")
        table.append((f"elastic: {cards // 2} to {cards} ranks", None, time.monotonic() - begun, None))
        nibble("job", "wait", elastic, "--timeout", "300s")
        expect(len(losses(events_below(root, elastic))) == steps, "the elastic job lacks steps")
        print(nibble("job", "events", elastic))
    finally:
        nibble("cluster", "down", check=False)

    alone = root / "alone.yaml"
    alone.write_text((root / "across.yaml").read_text() +
                     f"output: {{directory: {root / 'alone'}}}\n"
                     f"changes:\n  - {{at: step:{changed[0]}, set: {{fprop: bf16}}}}\n")
    failed = run_alone(programs, alone)
    expect(not failed, f"the run alone: {failed}")
    expected = losses(events_below(root, "alone"))
    actual = losses(run)
    differ = [step for step in expected if expected[step] != actual.get(step)]
    expect(not differ and len(expected) == steps, f"losses differ from step {differ[:1]} on")

    print(f"{cards} ranks on {device}, two daemons, ranks kept for {keep} s")
    print(f"{'steps at the command, at its effect':44} {seen}, {changed[0]}; {effect:.2f} s")
    print(f"{'losses with the bits of a run alone':44} {len(expected) - len(differ)} of {steps}")
    print(f"{'seconds until':44} {'known':>8} {'next step':>10} {'same processes':>15}")
    for name, known, step, same in table:
        print(f"{name:44} {'' if known is None else f'{known:.2f}':>8} {step:>10.2f} {'' if same is None else f'{same} of {cards}':>15}")
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())
