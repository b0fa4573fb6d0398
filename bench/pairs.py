#!/usr/bin/env python3
"""Speed before and after a change: the benchmarks of two trees, alternately, so that both see the same machine.

    bench/pairs.py BEFORE                      BEFORE: a tree with an older commit (git worktree add)
    bench/pairs.py BEFORE --rounds 9 --only step plan

Both trees must be built: bazel build $(bench/pairs.py --targets). Prints of each figure the median before and now, and
the median and the range of the rounds' ratios, now to before. The order within a round alternates too.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys

# name: (program, arguments, {figure: pattern of its number in the output})
BENCHES = {
    "step": ("bench/step/step_bench",
             ["--model", "tiny-hybrid", "--batch", "8", "--sequence", "256", "--steps", "10",
              "--recipe", "bf16", "nvfp4"],
             {"training step in BF16, ms": r"^bf16 .*step ([\d.]+) ms",
              "training step in NVFP4, ms": r"^nvfp4 .*step ([\d.]+) ms"}),
    "infer": ("bench/infer/decode_bench", ["--benchmark_min_time=0.5"],
              {"decoding, tokens/s": r"^.*[Dd]ecode.*?tokens/s=([\d.]+k?)"}),
    "plan": ("bench/scheduler/scheduler_bench", ["10000", "1000", "10"],
             {"plan, p50 ms": r"^plain .*plan p50 +([\d.]+) ms",
              "plan with quotas, p50 ms": r"^quotas .*plan p50 +([\d.]+) ms"}),
    "submit": ("bench/control/submit_bench", [],
               {"submissions/s, 64 clients": r"^ *64 clients +([\d.]+) submissions/s",
                "submission, 1 client, p50 ms": r"^ *1 clients .*p50 +([\d.]+) ms"}),
    "beats": ("bench/control/heartbeat_bench", ["--seconds", "8", "--rounds", "5"],
              {"heartbeat in the controller, p50 ms": r"^controller .*p50 +([\d.]+) ms",
               "heartbeat in the controller, cores": r"^controller .* ([\d.]+) cores",
               "heartbeat over streams, p99 ms": r"^streams .*p99 +([\d.]+) ms",
               "heartbeat over streams, cores": r"^streams .* ([\d.]+) cores"}),
}


def number(text):
    return float(text[:-1]) * 1000 if text.endswith("k") else float(text)


def figures(tree, bench):
    program, arguments, patterns = BENCHES[bench]
    done = subprocess.run([os.path.join(tree, "bazel-bin", program), *arguments], cwd=tree, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    found = {}
    for figure, pattern in patterns.items():
        match = re.search(pattern, done.stdout, re.M)
        if match is None:
            sys.exit(f"{tree}: {program} printed no '{figure}':\n{done.stdout}")
        found[figure] = number(match[1])
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("before", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=list(BENCHES))
    parser.add_argument("--targets", action="store_true", help="print what to build")
    options = parser.parse_args()
    if options.targets:
        print("//server:nibble-coordinator", *("//" + ":".join(program.rsplit("/", 1)) for program, _, _ in BENCHES.values()))
        return
    if options.before is None:
        parser.error("name the tree with the older commit")
    trees = {"before": os.path.abspath(options.before),
             "now": os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))}
    print(f"{'figure':38s} {'before':>10s} {'now':>10s} {'now/before':>11s}   range of {options.rounds} rounds")
    for bench in options.only:
        rounds = []
        for i in range(options.rounds):
            order = ["before", "now"] if i % 2 == 0 else ["now", "before"]
            rounds.append({which: figures(trees[which], bench) for which in order})
        for figure in BENCHES[bench][2]:
            before, now = ([one[which][figure] for one in rounds] for which in ("before", "now"))
            ratios = [b / a for a, b in zip(before, now)]
            print(f"{figure:38s} {statistics.median(before):10.4g} {statistics.median(now):10.4g} "
                  f"{statistics.median(ratios):11.3f}   {min(ratios):.3f} to {max(ratios):.3f}", flush=True)


if __name__ == "__main__":
    main()
