"""Reads JSON of the command line from stdin.

    nibble job describe JOB -o json | python3 tests/hosts/rank_worker.py RANK            the worker of a rank in the live attempt
    nibble job describe JOB -o json | python3 tests/hosts/rank_worker.py --attempt         number of the latest attempt
    nibble worker describe NAME -o json | python3 tests/hosts/rank_worker.py --presence  `present` or `lost`
"""

import json
import sys


def found(value, name):
    """Every value of this name, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == name:
                yield inner
            yield from found(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from found(inner, name)


def main():
    document = json.load(sys.stdin)
    if sys.argv[1] == "--presence":
        print("present" if next(found(document, "present"), False) else "lost")
        return
    if sys.argv[1] == "--attempt":
        # `attempt` is a number elsewhere, such as in a checkpoint.
        known = [one for one in found(document, "attempt") if isinstance(one, dict)]
        for name in ("recent_attempts", "recentAttempts"):
            known += [one for ended in found(document, name) for one in ended]
        print(max(int(one["number"]) for one in known))
        return
    # Fields of value 0 are left out; names are as in the proto file or in camel case.
    for one in next(found(document, "attempt"))["placements"]:
        first = int(one.get("first_rank", one.get("firstRank", 0)))
        if first <= int(sys.argv[1]) < first + len(one["slots"]):
            print(one["worker"])
            return
    sys.exit(f"no placement has rank {sys.argv[1]}")


if __name__ == "__main__":
    main()
