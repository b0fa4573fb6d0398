"""What the tests on cards share: a corpus, event logs of runs, the processes of ranks, a cluster's command line."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time


def new_directory(name):
    return pathlib.Path(tempfile.mkdtemp(prefix=f"gpu-{name}-", dir=".")).resolve()


def write_corpus(directory):
    """300 documents of the words of these tests."""
    words = " ".join(path.read_text() for path in sorted(pathlib.Path(__file__).parent.glob("*.py"))).split()
    path = directory / "corpus.txt"
    path.write_text("\n\n".join(
        " ".join(words[(7 * i + 3 * j * j) % len(words)] for j in range(400)) for i in range(300)))
    return path


def events(log):
    """Of an event log, which need not exist."""
    found = []
    if log.exists():
        for line in log.read_text().split("\n")[:-1]:
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                pass  # a killed writer's last line
    return found


def events_below(root, job):
    """The events of a job's runs on all workers, by time."""
    found = [event for log in root.rglob("events.jsonl") if log.parent.name == job for event in events(log)]
    return sorted(found, key=lambda event: event["time"])


def losses(all_events):
    """By step, the last one logged."""
    return {e["step"]: e["loss"] for e in all_events if e.get("event") == "step"}


def trainers(root):
    """By rank: process and parent of the trainers whose command names something below `root`."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        if words[0].endswith("nibble-trainer") and "--rank" in words and any(str(root) in word for word in words):
            found[int(words[words.index("--rank") + 1])] = (int(entry.name), parent)
    return found


class Checks:
    """What was not as expected; printed last."""

    def __init__(self):
        self.wrong = []

    def expect(self, condition, what):
        if not condition:
            self.wrong.append(what)
        return condition

    def wait_until(self, condition, seconds, what):
        """Polls; returns the seconds until the condition holds."""
        begun = time.monotonic()
        while not condition():
            if time.monotonic() - begun > seconds:
                self.expect(False, f"not within {seconds} s: {what}")
                break
            time.sleep(0.02)
        return time.monotonic() - begun

    def finish(self):
        for what in self.wrong:
            print("WRONG:", what)
        return 1 if self.wrong else 0


def command_line(programs, root):
    """nibble(words...) with a cluster of its own below `root`: its output; ends this process where it fails."""
    os.environ["NIBBLE_HOME"] = str(root / "home")
    os.environ.pop("NIBBLE_SERVER", None)

    def nibble(*words, check=True):
        done = subprocess.run([str(programs / "nibble"), *words], capture_output=True, text=True)
        if check and done.returncode != 0:
            sys.exit(f"nibble {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    return nibble


def run_alone(programs, spec):
    """A run without a cluster; what it said if it failed, or ''."""
    done = subprocess.run([str(programs / "nibble-trainer"), "--spec", str(spec), "--quiet"], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr.strip()}"
