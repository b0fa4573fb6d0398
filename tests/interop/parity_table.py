"""The report of parity_check.py and its parts: a line per check, and a table of comparisons."""

import subprocess
from importlib.metadata import version

failed = 0
rows = []


def check(what, ok, seen=""):
    global failed
    failed += not ok
    print(f"{'ok  ' if ok else 'FAIL'} {what}{f': {seen}' if seen else ''}", flush=True)


class Row:
    """One comparison of several checks. Construct it before the first, call end() after the last."""

    def __init__(self):
        self.failed_before = failed

    def end(self, compared, packages, amount, result):
        names = ", ".join(f"{name} {version(name)}" for name in packages)
        rows.append((compared, names, amount, result if failed == self.failed_before else "FAILED"))


def print_table():
    for cells in [("compared", "with", "how much", "result"), ("---",) * 4, *rows]:
        print(f"| {' | '.join(cells)} |")


def nibble(program, *arguments):
    """The program's stdout; RuntimeError with its error message if it fails."""
    run = subprocess.run([program, *arguments], capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(run.stderr.strip() or f"{program} ends with {run.returncode}")
    return run.stdout
