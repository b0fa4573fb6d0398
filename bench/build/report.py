"""The contents of a build's profile: actions, seconds of compiling by room, the dearest files and headers.

    report.py PROFILE EXECUTION_ROOT
"""
import collections
import gzip
import json
import os
import re
import subprocess
import sys

DEAREST = 20
MEASURED_HEADERS = 60  # those that most objects include
FLAGS = ["-std=c++20", "-fsyntax-only", "-DNOMINMAX", "-x", "c++"]


def actions(profile):
    with gzip.open(profile) as file:
        events = json.load(file)["traceEvents"]
    for event in events:
        if event.get("cat") == "action processing" and event.get("dur"):
            yield event["name"], event["dur"] / 1e6


def table(title, rows):
    print(f"\n{title}")
    for seconds, count, name in rows:
        print(f"{seconds:8.1f} s  {count:5d}  {name}")


class Includes:
    """What a file includes, directly and through files of the project and generated ones."""

    def __init__(self, root):
        self.roots = [".", f"{root}/bazel-out/k8-opt/bin"]
        self.known = {}

    def direct(self, path):
        for root in self.roots:
            try:
                with open(os.path.join(root, path), errors="replace") as file:
                    return set(re.findall(r'^ *# *include ([<"][^>"]+[>"])', file.read(), re.M))
            except OSError:
                continue
        return set()

    def of(self, path):
        if path not in self.known:
            self.known[path] = set()  # of a header that includes itself
            found = self.direct(path)
            for include in list(found):
                if include[0] == '"':
                    found |= self.of(include[1:-1])
            self.known[path] = found
        return self.known[path]


def parse_seconds(include, root):
    """Of a file that includes this header alone; None where it does not compile alone."""
    command = ["g++", *FLAGS, "-I.", f"-I{root}/bazel-out/k8-opt/bin", "-"]
    before = os.times()
    done = subprocess.run(command, input=f"#include {include}\n", text=True, capture_output=True)
    after = os.times()
    if done.returncode != 0:
        return None
    return after.children_user - before.children_user


def main():
    profile, root = sys.argv[1:]
    by_kind, rooms, files = (collections.defaultdict(list) for _ in range(3))
    for name, seconds in actions(profile):
        kind, _, rest = name.partition(" ")
        by_kind[kind].append(seconds)
        if kind == "Compiling":
            path = rest.split()[0]
            rooms[os.path.dirname(path)].append(seconds)
            files[path].append(seconds)

    def dearest(groups, most=None):
        rows = [(sum(seconds), len(seconds), name) for name, seconds in groups.items()]
        return sorted(rows, reverse=True)[:most]

    table("actions: seconds, number, kind", dearest(by_kind, 6))
    table("compiling by room: seconds, files", dearest(rooms))
    table("dearest files: seconds, times compiled", dearest(files, DEAREST))

    # A header's cost: the time to parse it alone, in every object that includes it. Headers include one
    # another, so the figures overlap.
    includes = Includes(root)
    users = collections.Counter()
    for path, compiled in files.items():
        for include in includes.of(path):
            if not include.endswith('.cc"'):
                users[include] += len(compiled)
    rows = []
    for include, count in users.most_common(MEASURED_HEADERS):
        seconds = parse_seconds(include, root)
        if seconds is not None:
            rows.append((seconds * count, count, f"{include}  {seconds:.2f} s each"))
    table("dearest headers, parsed alone: seconds over all objects, objects", sorted(rows, reverse=True)[:DEAREST])


if __name__ == "__main__":
    main()
