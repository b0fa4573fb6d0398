"""The size of the tree: files, lines, tests and BUILD lines, by room and in all.

    bench/build/size.py [REVISION]     default: HEAD
"""
import collections
import os
import re
import subprocess
import sys

CODE = (".cc", ".h", ".cu", ".cuh", ".inc")
SMALL = 60  # lines; a shorter file is an exception


def git(*arguments):
    return subprocess.run(["git", *arguments], capture_output=True, check=True).stdout.decode(errors="replace")


def is_code_line(line):
    return line.strip() != "" and not line.strip().startswith("//")


def main():
    revision = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    rooms = collections.defaultdict(collections.Counter)
    for path in git("ls-tree", "-r", "--name-only", revision).splitlines():
        room = rooms[os.path.dirname(path) or "."]
        if os.path.basename(path) == "BUILD" or path.endswith(".bzl"):
            room["build"] += git("show", f"{revision}:{path}").count("\n")
        if not path.endswith(CODE):
            continue
        text = git("show", f"{revision}:{path}")
        code = sum(map(is_code_line, text.splitlines()))
        is_test = path.endswith("_test.cc")
        room["files"] += 1
        room["small"] += text.count("\n") < SMALL
        room["test code" if is_test else "code"] += code
        room["checks"] += len(re.findall(r"\.ok\(\)\) (?:return|\{\n\s+return)", text))
        room["tests"] += len(re.findall(r"^(?:TYPED_)?TEST(?:_F|_P)?\(", text, re.M))
    columns = ["files", "small", "code", "test code", "tests", "checks", "build"]
    print(f"{revision}: code files, those under {SMALL} lines, lines of code that are not blank or comment (tests apart),")
    print("tests, status checks written by hand, lines of BUILD and .bzl")
    print(f"{'':28}" + "".join(f"{column:>11}" for column in columns))
    total = collections.Counter()
    for name, room in sorted(rooms.items()):
        total.update(room)
        if room["files"]:
            print(f"{name:28}" + "".join(f"{room[column]:11}" for column in columns))
    print(f"{'all':28}" + "".join(f"{total[column]:11}" for column in columns))


if __name__ == "__main__":
    main()
