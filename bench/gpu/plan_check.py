#!/usr/bin/env python3
"""What `nibble model show --nodes 1` expects of a step, beside what bench/gpu/scaling.py measured.

    bench/gpu/plan_check.py NIBBLE TABLE [--link 250GB/s]

TABLE: a file with the table that scaling.py prints, such as docs/results/gpu.md. The rate of the model's operations is that of
the same recipe on one card in the table, so only the exchanges are judged. `planned`, `measured`: the share of the rate on one
card times the number of cards. `lost ms`: what a step took beyond the plan; `link ms`: how long the plan has the link in use,
with what does not hide. Their ratio is what the plan leaves out: computation that is slower beside an exchange.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

from scaling import MODELS

# Model, recipe, level, what moves the bytes if the table says so, cards, tokens per second.
ROW = re.compile(r"^(\S+) +(\S+) +(optimizer|gradients|weights) +([a-z]+ +)?(\d+) +(\d+) ")


def measured(path):
    """Tokens per second by (model, recipe, sharding, exchange, cards); of one card without an exchange."""
    rates = {}
    for line in path.read_text().splitlines():
        found = ROW.match(line)
        if found and found[1] in MODELS:
            cards = int(found[5])
            exchange = (found[4] or "nccl").strip() if cards > 1 else "-"
            rates[found[1], found[2], found[3], exchange, cards] = float(found[6])
    return rates


def plan(nibble, key, link, rate=None):
    """The planned step of a card, as `nibble model show` prints it."""
    model, recipe, sharding, _, cards = key
    what = MODELS[model]
    command = [nibble, "model", "show", what["model"], "--nodes", "1", "--cards-per-node", str(cards), "--sequence",
               str(what["sequence"]), "--batch", str(what["batch"]), "--recipe", recipe, "--sharding", sharding, "--link", link,
               "-o", "json"]
    if rate:
        command += ["--rate", f"{rate / 1e12:.6f}TFLOP/s"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("nibble")
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("--link", default="250GB/s", help="rate of a card: of reductions in rank order, as `bundle/nccl-check.sh` "
                        "prints it; default %(default)s")
    arguments = parser.parse_args()
    rates = measured(arguments.table)
    rows = []
    for key, rate in sorted(rates.items()):
        model, recipe, sharding, exchange, cards = key
        one = rates.get((model, recipe, "optimizer", "-", 1))
        if cards == 1 or one is None:
            continue
        if not re.fullmatch(r"[a-z0-9.-]+", MODELS[model]["model"]):
            print(f"{model}: left out; it is not a preset")
            continue
        tokens = MODELS[model]["batch"] * MODELS[model]["sequence"]
        flops = plan(arguments.nibble, key, arguments.link)
        computed = flops["steps"][sharding][0]["packed"]["compute_seconds"]
        # The rate at which the plan computes as long as one card did.
        rate_of_one = flops["rates"]["flops_per_second"] * computed / (tokens / one)
        step = plan(arguments.nibble, key, arguments.link, rate_of_one)["steps"][sharding][0]["packed"]
        bytes_per_second = flops["rates"]["link_bytes_per_second"]
        link = (step["gradient_link_bytes"] + step["gather_link_bytes"]) / bytes_per_second
        seconds = tokens * cards / rate
        lost = seconds - step["step_seconds"]
        rows.append((model, recipe, sharding, exchange, cards, step["efficiency"], rate / cards / one, 1e3 * step["step_seconds"],
                     1e3 * seconds, 1e3 * lost, 1e3 * link, lost / link))
    if not rows:
        sys.exit(f"{arguments.table} has no runs on several cards of models with a preset")
    print(f"{'model':8}{'recipe':12}{'sharding':11}{'exchange':9}{'cards':>5}{'planned':>9}{'measured':>10}{'plan ms':>9}{'step ms':>9}{'lost ms':>9}"
          f"{'link ms':>9}{'lost/link':>11}")
    for row in rows:
        print(f"{row[0]:8}{row[1]:12}{row[2]:11}{row[3]:9}{row[4]:5d}{row[5]:9.3f}{row[6]:10.3f}{row[7]:9.1f}{row[8]:9.1f}"
              f"{row[9]:9.1f}{row[10]:9.1f}{row[11]:11.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
