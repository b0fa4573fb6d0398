"""How far data walks through the code, now and before the clean-up that began after commit 467f14f.

    python3 bench/build/walks.py [--before] [--list]

Prints three walks, in the working tree and, with --before, at that commit:

    recipe_set   a recipe change, from `nibble recipe set` to the layers that a rank trains with
    figure       the loss of a step, from the trainer that computes it to the daemon's /metrics
    new_figure   not a walk: the files that are edited to add such a figure of a step

Each is a text file in bench/build/walks, NAME.txt or NAME_before.txt, with one line for each step:

    file | function or type | form

Files: the different code files. Forms: the lines that name a form, which is named where the data is converted: the
first line and each conversion after it. --list prints the steps.

What counts, in both versions:
- A step is a function, defined in this file, that the data passes through on its way, or that hands it over to
  another thread. Generated code, libraries, containers, getters, registrations, checks and answers are not steps.
- The form is the type that carries the data. That type as a field of another message or struct is the same form, and
  so is a text or its copy in a buffer. A message and its serialised bytes are two forms; a frame adds none to these.

Every file must exist in its version and contain the name as a word; otherwise the command fails.
"""
import pathlib
import re
import subprocess
import sys

BEFORE = "467f14f"
WALKS = ("recipe_set", "figure", "new_figure")
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, errors="replace")


def read_now(path):
    file = ROOT / path
    return file.read_text(errors="replace") if file.is_file() else None


def read_before(path):
    shown = git("show", f"{BEFORE}:{path}")
    return shown.stdout if shown.returncode == 0 else None


def read_steps(name):
    """The steps of a walk's file as (file, name, form); '#' begins a comment."""
    steps = []
    for number, line in enumerate((HERE / "walks" / f"{name}.txt").read_text().splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) not in (2, 3) or not all(parts):
            sys.exit(f"walks/{name}.txt:{number}: '{line}' is not 'file | function or type' or '… | form'")
        steps.append((parts[0], parts[1], parts[2] if len(parts) == 3 else ""))
    if not steps:
        sys.exit(f"walks/{name}.txt: has no step")
    return steps


def problems(name, steps, read):
    texts = {path: read(path) for path, _, _ in steps}
    for path, step, _ in steps:
        if texts[path] is None:
            yield f"walks/{name}.txt: there is no file {path}"
        elif not re.search(rf"(?<!\w){re.escape(step)}(?!\w)", texts[path]):
            yield f"walks/{name}.txt: '{step}' does not occur in {path}"


def main():
    arguments = set(sys.argv[1:])
    if arguments - {"--before", "--list"}:
        sys.exit(__doc__)
    versions = [("now", "", read_now)]
    if "--before" in arguments:
        if git("cat-file", "-e", f"{BEFORE}^{{commit}}").returncode != 0:
            sys.exit(f"commit {BEFORE} is not in this clone; fetch it, for example with 'git fetch --unshallow'")
        versions.insert(0, ("before", "_before", read_before))
    walks = [(walk, version, read_steps(walk + suffix), read) for walk in WALKS for version, suffix, read in versions]
    wrong = [f"{version}: {problem}" for walk, version, steps, read in walks
             for problem in problems(walk + ("_before" if version == "before" else ""), steps, read)]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{'walk':12}{'version':>9}{'files':>7}{'forms':>7}")
    for walk, version, steps, _ in walks:
        forms = sum(form != "" for _, _, form in steps)
        print(f"{walk:12}{version:>9}{len({path for path, _, _ in steps}):7}{forms or '-':>7}")
    if "--list" in arguments:
        for walk, version, steps, _ in walks:
            print(f"\n{walk}, {version}")
            for path, step, form in steps:
                print(f"  {path:44} {step:34} {'→ ' + form if form else ''}".rstrip())


if __name__ == "__main__":
    main()
