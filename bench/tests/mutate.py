#!/usr/bin/env python3
"""Do the tests notice harm? Puts small harms into the code, one at a time, and runs the tests of their rooms.

    bench/tests/mutate.py                          all of bench/tests/mutations; hours
    bench/tests/mutate.py --room common/files worker/checkpoint
    bench/tests/mutate.py --name 'staged-*' --bazel 'nice bazel'
    bench/tests/mutate.py --list                   names, rooms and harms
    bench/tests/mutate.py --check                  only whether every patch applies

A mutation is a file bench/tests/mutations/NAME.patch, named after what it harms:

    After a power failure a revoked token is valid again: the directory is not synced after the rename.
    rooms: common/files server/access
    filter: StagedFileTest.*
    --- a/common/files/staged_file.cc
    +++ b/common/files/staged_file.cc
    @@ ...

The first line is what goes wrong for a user, and how. `rooms` are those whose tests are to find it (`worker/agent` is
//worker/agent:tests; a label such as `//tests/cluster:drain_test` works too). `filter`, which is optional, is given to
Bazel as --test_filter. The rest is what `git diff` prints; lines may have moved, but their text must be the same.

The tree is copied to --scratch, with changes that are not committed, and is itself left alone. First the tests run
without mutations: if they fail there, nothing can be said. Then each mutation is built and tested:

    found           a test fails or does not end
    NOT FOUND       all tests pass
    error           the patch no longer applies or does not compile, or its tests fail without it

Exit status: 0 if all were found, 1 if some were not, 2 for errors.
"""
import argparse
import fnmatch
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MUTATIONS = ROOT / "bench/tests/mutations"
BUILD_FAILED, TESTS_FAILED = 1, 3  # exit statuses of bazel test


class Mutation:
    def __init__(self, path):
        self.path, self.name = path, path.stem
        head = re.split(r"^(?:diff --git|---) ", path.read_text(), maxsplit=1, flags=re.M)[0]
        fields = dict(re.findall(r"^(rooms|filter): *(.+?) *$", head, flags=re.M))
        if "rooms" not in fields:
            sys.exit(f"{path}: its head has no line 'rooms: ROOM...'")
        self.harm = head.split("\n", 1)[0]
        self.rooms = fields["rooms"].split()
        self.targets = tuple(room if room.startswith("//") else f"//{room}:tests" for room in self.rooms)
        self.filter = fields.get("filter", "")


def copy_tree(scratch):
    """Makes `scratch` equal to the tree, writing only files that differ, so that little is built again."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            check=True, capture_output=True).stdout.decode().split("\0")
    wanted = {name for name in listed + [".bazelrc.user"] if name and os.path.lexists(ROOT / name)}
    for folder, folders, files in os.walk(scratch):
        folders[:] = [name for name in folders if not os.path.islink(os.path.join(folder, name))]
        for name in files:
            path = pathlib.Path(folder, name)
            if str(path.relative_to(scratch)) not in wanted:
                path.unlink()
    for name in wanted:
        source, copy = ROOT / name, scratch / name
        if source.is_symlink():
            if not copy.is_symlink() or os.readlink(copy) != os.readlink(source):
                copy.unlink(missing_ok=True)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.symlink_to(os.readlink(source))
        elif not copy.is_file() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)


def apply(mutation, scratch, check=False):
    """The reason why it does not apply, or ""."""
    # Outside of a repository git changes the files below the current folder, as patch does, but without fuzz.
    done = subprocess.run(["git", "apply"] + ["--check"] * check + [str(mutation.path)], cwd=scratch, text=True,
                          capture_output=True, env={**os.environ, "GIT_CEILING_DIRECTORIES": str(scratch.parent)})
    return done.stderr.strip() if done.returncode else ""


def run_tests(bazel, scratch, targets, test_filter, log):
    """Bazel's exit status."""
    command = bazel + ["test", *targets]
    if test_filter:
        command.append(f"--test_filter={test_filter}")
    log.write(f"\n===== {shlex.join(command)}\n")
    log.flush()
    return subprocess.run(command, cwd=scratch, stdout=log, stderr=subprocess.STDOUT).returncode


def failed_test(scratch, targets):
    """A test that failed in the last run."""
    for target in targets:
        for path in (scratch / "bazel-testlogs" / target.strip("/").replace(":", "/")).rglob("test.log"):
            failed = re.search(r"\[  FAILED  \] (\S+)", path.read_text(errors="replace"))
            if failed:
                return failed[1].rstrip(",")
    return "no test of googletest: see the log"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", nargs="+", default=["*"], metavar="GLOB", help="mutations with such names")
    parser.add_argument("--room", nargs="+", metavar="ROOM", help="mutations that tests of these rooms are to find")
    parser.add_argument("--list", action="store_true", help="print them, run nothing")
    parser.add_argument("--check", action="store_true", help="only try whether the patches apply")
    parser.add_argument("--bazel", default="bazel", metavar="COMMAND", help="the command that runs Bazel")
    parser.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path.home() / ".cache/nibble/mutate",
                        help="the copy of the tree, kept for the next call (default: %(default)s)")
    parser.add_argument("--skip-baseline", action="store_true", help="trust that tests pass without mutations")
    flags = parser.parse_args()
    chosen = [mutation for mutation in map(Mutation, sorted(MUTATIONS.glob("*.patch")))
              if any(fnmatch.fnmatch(mutation.name, glob) for glob in flags.name)
              and (flags.room is None or set(flags.room) & set(mutation.rooms))]
    if not chosen:
        sys.exit("no mutation has such a name and room; see --list")
    if flags.list:
        for mutation in chosen:
            print(f"{mutation.name}  ({' '.join(mutation.rooms)})\n    {mutation.harm}")
        return 0
    scratch, bazel = flags.scratch.resolve(), shlex.split(flags.bazel)
    copy_tree(scratch)
    counts = {"found": 0, "NOT FOUND": 0, "error": 0}

    def report(mutation, outcome, detail):
        counts[outcome] += 1
        print(f"{outcome:<10} {mutation.name}  ({detail})", flush=True)

    runnable = []
    for mutation in chosen:
        why = apply(mutation, scratch, check=True)
        if why:
            report(mutation, "error", why)
        else:
            runnable.append(mutation)
    if flags.check:
        print(f"{len(runnable)} of {len(chosen)} apply")
        return 2 if counts["error"] else 0
    log_path = scratch.with_suffix(".log")
    with open(log_path, "w") as log:
        print(f"the output of Bazel is in {log_path}")
        broken = set()
        for run in sorted({(mutation.targets, mutation.filter) for mutation in runnable}):
            if not flags.skip_baseline and run_tests(bazel, scratch, *run, log):
                broken.add(run)
        for mutation in runnable:
            if (mutation.targets, mutation.filter) in broken:
                report(mutation, "error", "its tests fail without it")
                continue
            copy_tree(scratch)
            apply(mutation, scratch)
            begun = time.monotonic()
            status = run_tests(bazel, scratch, mutation.targets, mutation.filter, log)
            took = f"{time.monotonic() - begun:.0f} s"
            if status == 0:
                report(mutation, "NOT FOUND", f"{took}; {mutation.harm}")
            elif status == TESTS_FAILED:
                report(mutation, "found", f"{took}; {failed_test(scratch, mutation.targets)}")
            else:
                report(mutation, "error", "does not compile" if status == BUILD_FAILED else f"bazel exited {status}")
        copy_tree(scratch)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()), f"of {len(chosen)}")
    return 2 if counts["error"] else 1 if counts["NOT FOUND"] else 0


if __name__ == "__main__":
    sys.exit(main())
