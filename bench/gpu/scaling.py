#!/usr/bin/env python3
"""Weak scaling: the same work per card on one and more cards of this machine, every level of sharding, beside PyTorch's DDP.

    bench/gpu/scaling.py BIN [--worlds 1 2 4] [--models 1.2B 124M] [--recipes bf16 nvfp4] [--sharding optimizer ...]
                             [--exchanges auto nccl] [--rounds 1] [--steps 15] [--no-torch] [--through-nccl]
                             [--before BIN]

BIN: the directory of nibble and nibble-trainer. Whole steps of nibble-trainer on random tokens, as a job runs them; the rate of a run is
its median over steps without the first four. Each number of ranks runs every way once a round, so that what is compared is
measured within minutes. --exchanges: what moves gradients and weights (resources.exchange). PyTorch
(bench/peers/torch_transformer.py, compiled, BF16) runs under torchrun. Prints tokens per second of all cards, the lowest and
highest of the rounds, the share of the rate on one card times the number of cards, the model's TFLOP/s of a card (`nibble model
show`: training FLOPs, none counted twice for recomputed blocks) and their share of the 989 that BF16 GEMMs make at most, what a
step of rank 0 waited for gathers and reductions in milliseconds, and the planned and the taken memory of rank 0 (PyTorch: its peak). Cards of one machine differ by some percent,
and ranks that sum their gradients all go as fast as the slowest: so with 1 among the worlds the same run of one rank is also made on all cards at
once, each for itself, and 'of slowest' is the share of the slowest card's rate then times the number of cards. Exits 1 if a run
failed, or if it took more memory than was planned by more than 3 %. --through-nccl: one rank also runs through NCCL
(resources.collectives), and more than 1 % less than without it is an error. --before BIN: the trainer of another build runs each
of ours, too, in turns with it, as 'RECIPE before'. --traces DIR keeps a timeline of two steps of each run, for Perfetto.
"""

import argparse
import array
import concurrent.futures
import functools
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

# batch: sequences per card. The peer's arguments describe the same model.
MODELS = {
    "1.2B": {"model": "transformer-1.2b", "batch": 4, "sequence": 4096, "vocabulary": 65536,
             "peer": "--layers 20 --d-model 2048 --d-ff 6144 --heads 16 --kv-heads 8 --head-dim 128 --vocab 65536"},
    "124M": {"model": "{name: transformer-124m, pattern: \"" + "*-" * 12 + "\", vocab: 50304, d_model: 768, d_ff: 3072, "
                      "heads: 12, kv_heads: 12, head_dim: 64, positions: rope, activation: relu2}",
             "batch": 64, "sequence": 1024, "vocabulary": 50304,
             "peer": "--layers 12 --d-model 768 --d-ff 3072 --heads 12 --kv-heads 12 --head-dim 64 --vocab 50304"},
    "hybrid": {"model": "hybrid-1b", "batch": 2, "sequence": 8192, "vocabulary": 65536, "peer": None},
    # On eight cards of 141 GB, and the first from four on (docs/guide/sizing.md).
    "8B": {"model": "nemotron-h-8b", "batch": 1, "sequence": 8192, "vocabulary": 65536, "peer": None},
    "12B": {"model": "nemotron-h-12b", "batch": 1, "sequence": 8192, "vocabulary": 65536, "recompute": "blocks", "peer": None},
    # For a try on a machine without a card.
    "tiny": {"model": "tiny-hybrid", "batch": 4, "sequence": 128, "vocabulary": 256, "peer": None},
}

PEAK_TFLOPS = 989  # of BF16 GEMMs on an H100 or H200, dense, at the highest clock

JOB = """name: scaling
model: %(model)s
recipe: %(recipe)s
data: {train: [{path: %(tokens)s, token_width: 2}], tokenizer_label: random, sequence: %(sequence)d}
training: {steps: %(steps)d, batch: %(batch)d, micro_batch: %(micro_batch)d, validate_every: 0, seed: 1,
           recompute: %(recompute)s}
metrics: {log_every: 1, precision_every: 0}
checkpoints: {every: 0, at_end: false}
resources: {ranks: %(ranks)d, device: %(device)s, sharding: %(sharding)s, exchange: %(exchange)s, collectives: %(collectives)s}
output: {directory: %(output)s}
"""


def environment(card):
    """With this card alone, an index of those that are visible; None: with all of them."""
    if card is None:
        return dict(os.environ)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {**os.environ, "CUDA_VISIBLE_DEVICES": visible.split(",")[card] if visible else str(card)}


def flops_per_token(programs, model):
    """Of a training step, or None where the model cannot be shown."""
    what = MODELS[model]
    done = subprocess.run([str(programs / "nibble"), "model", "show", what["model"], "--sequence", str(what["sequence"]), "-o", "json"],
                          capture_output=True, text=True)
    return json.loads(done.stdout)["flops_per_token"]["training"] if done.returncode == 0 else None


def ours(programs, root, model, recipe, ranks, sharding, exchange, arguments, card=None):
    """The trainer's steps without the first ones, its planned and its taken memory in bytes; no steps: it failed."""
    what = MODELS[model]
    output = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=root))
    spec = output / "job.yaml"
    spec.write_text(JOB % {
        "recompute": what.get("recompute", "none"),
        "model": what["model"], "recipe": recipe, "tokens": root / f"{model}.bin", "sequence": what["sequence"],
        "steps": arguments.steps, "batch": what["batch"] * ranks, "micro_batch": what["batch"], "ranks": ranks, "sharding": sharding,
        "exchange": exchange, "collectives": "nccl" if ranks == 1 and exchange == "nccl" else "auto",
        "device": arguments.device, "output": output / "out"})
    command = [str(programs / "nibble-trainer"), "--spec", str(spec), "--quiet"]
    if arguments.traces and card is None and programs == arguments.programs.resolve():  # not of the build before
        arguments.traces.mkdir(parents=True, exist_ok=True)
        trace = arguments.traces / f"{model}-{recipe}-{sharding}-{exchange}-{ranks}.json"
        command += ["--trace", str(trace), "--trace-after", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(card))
    if done.returncode != 0:
        print(f"{model} {recipe} {sharding} {exchange} on {ranks}: exit {done.returncode}: {done.stderr.strip()[-600:]}",
              flush=True)
        return None, 0, 0
    lines = [json.loads(line) for line in (output / "out" / "events.jsonl").read_text().splitlines()]
    planned = next((event["total"] for event in lines if event["event"] == "memory"), 0)
    taken = next((event["memory_peak"] for event in lines if event["event"] == "finish"), 0)
    return [event for event in lines if event["event"] == "step"][4:], planned, taken


def torchs(model, ranks, arguments, card=None):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
               str(HERE.parent / "peers" / "torch_transformer.py"), "--device", arguments.device, "--mode", "compile", "--steps",
               str(arguments.steps), "--batch", str(MODELS[model]["batch"]), "--sequence", str(MODELS[model]["sequence"]),
               *MODELS[model]["peer"].split()]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(card))
    if done.returncode != 0:
        print(f"torch on {ranks}: exit {done.returncode}: {done.stderr.strip()[-600:]}", flush=True)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def slowest(cards, run):
    """The lowest of the rates that run(card) returns, on all cards at once; None if one failed."""
    with concurrent.futures.ThreadPoolExecutor(cards) as pool:
        found = list(pool.map(run, range(cards)))
    return None if None in found else min(found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--worlds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["1.2B", "124M"])
    parser.add_argument("--recipes", nargs="+", default=["bf16", "nvfp4"])
    parser.add_argument("--sharding", nargs="+", default=["optimizer", "gradients", "weights"])
    parser.add_argument("--exchanges", nargs="+", choices=["auto", "copies", "nccl"], default=["auto"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    parser.add_argument("--through-nccl", action="store_true")
    parser.add_argument("--before", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--traces", type=pathlib.Path)
    arguments = parser.parse_args()
    programs = arguments.programs.resolve()
    root = pathlib.Path(tempfile.mkdtemp(prefix="gpu-scaling-", dir=".")).resolve()
    source = random.Random(1)
    for model in arguments.models:
        what = MODELS[model]
        count = max(arguments.worlds) * what["batch"] * (what["sequence"] + 1) * 4
        tokens = array.array("H", (source.randrange(what["vocabulary"]) for _ in range(count)))
        (root / f"{model}.bin").write_bytes(tokens.tobytes())
    several = [(sharding, exchange) for sharding in arguments.sharding for exchange in arguments.exchanges]
    alone = [("optimizer", "auto")] + ([("optimizer", "nccl")] if arguments.through_nccl else [])
    builds = {"": programs, **({" before": arguments.before.resolve()} if arguments.before else {})}
    rates, waits, memory, apart, failed = {}, {}, {}, {}, False

    def rate(model, steps, ranks=1):
        return MODELS[model]["batch"] * MODELS[model]["sequence"] * ranks / statistics.median(step["seconds"] for step in steps)

    def rate_apart(model, recipe, card):
        steps, _, _ = ours(programs, root, model, recipe, 1, "optimizer", "auto", arguments, card)
        return rate(model, steps) if steps else None

    def torch_apart(model, card):
        found = torchs(model, 1, arguments, card)
        return found["tokens_per_s"] if found else None

    cards = max(arguments.worlds)
    for _ in range(arguments.rounds):
        for model in arguments.models:
            if cards > 1 and 1 in arguments.worlds and arguments.device == "cuda":
                runs = {recipe: functools.partial(rate_apart, model, recipe) for recipe in arguments.recipes}
                if arguments.torch and MODELS[model]["peer"]:
                    runs["torch bf16"] = functools.partial(torch_apart, model)
                for run, one in runs.items():
                    found = slowest(cards, one)
                    failed |= found is None
                    if found:
                        apart.setdefault((model, run), []).append(found)
            for ranks in arguments.worlds:
                if arguments.torch and MODELS[model]["peer"]:
                    found = torchs(model, ranks, arguments)
                    failed |= found is None
                    if found:
                        rates.setdefault((model, "torch bf16", "ddp", "-", ranks), []).append(found["tokens_per_s"])
                        memory[model, "torch bf16", "ddp", "-", ranks] = None, found["peak_memory_mib"]
                for recipe in arguments.recipes:
                    for sharding, exchange in several if ranks > 1 else alone:
                        for build, directory in builds.items():
                            steps, planned, taken = ours(directory, root, model, recipe, ranks, sharding, exchange, arguments)
                            failed |= not steps
                            if not steps:
                                continue
                            key = (model, recipe + build, sharding, exchange, ranks)
                            rates.setdefault(key, []).append(rate(model, steps, ranks))
                            # The table comes last; who is cut off before keeps these.
                            print(f"{' '.join(map(str, key))}: {rates[key][-1]:.0f} tokens/s", file=sys.stderr, flush=True)
                            waits[key] = [statistics.median(step[part] for step in steps)
                                          for part in ("weights_seconds", "reduce_seconds")]
                            memory[key] = planned / 2**20, taken / 2**20
    flops = {model: flops_per_token(programs, model) for model in arguments.models}
    wrong = []
    print(f"{'model':8}{'run':15}{'sharding':11}{'exchange':9}{'cards':>5}{'tokens/s':>11}{'lowest':>10}{'highest':>10}"
          f"{'of linear':>11}{'of slowest':>11}{'TFLOP/s':>9}{'of 989':>8}{'gather ms':>11}{'reduce ms':>11}{'plan MiB':>10}{'MiB':>8}")
    for key, found in sorted(rates.items(), key=lambda item: (item[0][0], item[0][1], item[0][4], item[0][2], item[0][3])):
        model, run, sharding, exchange, ranks = key
        one = rates.get((model, run, *(("ddp", "-") if run.startswith("torch") else ("optimizer", "auto")), 1))
        share, of_slowest = (f"{statistics.median(found) / ranks / statistics.median(other):.3f}" if other else "-"
                             for other in (one, apart.get((model, run.removesuffix(" before")))))
        of_card = flops[model] * statistics.median(found) / ranks / 1e12 if flops[model] else None
        made, part = (f"{of_card:.1f}", f"{of_card / PEAK_TFLOPS:.3f}") if of_card else ("-", "-")
        gather, reduce = (f"{1e3 * wait:.2f}" for wait in waits[key]) if key in waits else ("-", "-")
        print(f"{model:8}{run:15}{sharding:11}{exchange:9}{ranks:5d}{statistics.median(found):11.0f}{min(found):10.0f}{max(found):10.0f}"
              f"{share:>11}{of_slowest:>11}{made:>9}{part:>8}{gather:>11}{reduce:>11}"
              f"{'-' if memory[key][0] is None else format(memory[key][0], '.0f'):>10}{memory[key][1]:8.0f}")
        if memory[key][0] and memory[key][1] > 1.03 * memory[key][0] and arguments.device == "cuda":
            wrong.append(f"{' '.join(map(str, key))}: {memory[key][1]:.0f} MiB taken, {memory[key][0]:.0f} MiB planned")
        if exchange == "nccl" and ranks == 1 and one and statistics.median(found) < 0.99 * statistics.median(one):
            wrong.append(f"{' '.join(map(str, key))}: {share} of the rate without NCCL; the limit is 0.99")
    for what in wrong:
        print("WRONG:", what)
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
