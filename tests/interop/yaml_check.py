"""Checks that PyYAML, a YAML 1.1 parser, reads the output of `-o yaml` back unchanged.

    python yaml_check.py YAML_OF_JSON NIBBLE

The first argument is the program of yaml_of_json_main.cc. Prints a line per check; exits with 1
if one fails.
"""

import json
import random
import subprocess
import sys

import yaml

TEXTS = [
    "", " ", "a", "train-7", "two words", " x", "x ", "- a", "a: b", "a:", "a #b", "#", "~", "null",
    "Null", "true", "No", "yes", "on", "OFF", "y", "n", "1", "-1", "+1", "1.5", ".5", "1e3", "1e-05",
    "1.0e-05", "0x1f", "0o7", "017", "1_000", "12:30:45", "190:20:30", ".inf", "-.inf", ".nan", "nan",
    "inf", "2026-11-22", "2026-11-22 07:00:00", "=", "<<", "*a", "&a", "!a", "%a", "@a", "`a", "?",
    "? a", "|", ">", "[a]", "{a}", "a, b", "'a'", '"a"', "\\", "a\tb", "\ta", "a\nb", "a\n", "a\n\n",
    "\na", " a\nb", "a\r\nb", "\x00", "\x01", "\x1b[0m", "\x7f", "\x85", "\x9f", "\u2028", "\u2029",
    "\ufeff", "na\u00efve \u2192 text", "\U0001f600", "---", "...", "--- a", "step:100", "a" * 300,
]
NUMBERS = [0, -1, 7, 2**53 + 1, 2**63 - 1, -(2**63), 0.25, 1e-05, 1.5e-08, 1e22, -1e300, 5e-324, 3.0]


def written(program, value):
    run = subprocess.run([program], input=json.dumps(value).encode(), capture_output=True, check=True)
    return run.stdout.decode()


def random_value(draw, depth):
    kind = draw.randrange(4 if depth else 2)
    if kind == 0:
        return draw.choice(TEXTS + [None, True, False])
    if kind == 1:
        return draw.choice(NUMBERS)
    if kind == 2:
        return [random_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    return {draw.choice(TEXTS[:80]): random_value(draw, depth - 1) for _ in range(draw.randrange(4))}


def alike(a, b):
    return type(a) is type(b) and (
        all(map(alike, a, b)) and len(a) == len(b)
        if isinstance(a, list)
        else a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
        if isinstance(a, dict)
        else a == b
    )


def main():
    program, nibble = sys.argv[1:]
    failed = 0
    draw = random.Random(7)
    values = [{"text": t, t: 1} for t in TEXTS] + [{"number": n} for n in NUMBERS]
    values += [{"all": random_value(draw, 4)} for _ in range(300)]
    for value in values:
        text = written(program, value)
        try:
            back = yaml.safe_load(text)
        except yaml.YAMLError as error:
            back = error
        if not alike(back, value):
            failed += 1
            print(f"FAIL {value!r}: {text!r} reads back as {back!r}")
    print(f"{'FAIL' if failed else 'ok  '} {len(values) - failed} of {len(values)} values read back")

    defaults = yaml.safe_load(
        subprocess.run([nibble, "job", "show-defaults"], capture_output=True, check=True).stdout
    )
    numbers = [defaults["optimizer"][name] for name in ("lr", "final_lr", "epsilon")]
    ok = all(isinstance(number, float) for number in numbers)
    failed += not ok
    print(f"{'ok  ' if ok else 'FAIL'} the defaults of a spec: {numbers}")
    sys.exit(1 if failed else 0)


main()
