#!/usr/bin/env python3
"""compute-sanitizer's four tools over the check programs, each with few cases and a time limit, several at once.

    tests/gpu/sanitizer.py BIN [--seconds 60] [--total 540] [--tools racecheck ...] [--programs attention-hopper ...]

BIN: the directory of the check programs. Logs go to --output. Prints a line per tool and program, as each ends: clean,
how many errors or hazards, timed out, or that the program itself failed; under it the places of the first ones. Exits 1
unless all are clean.

The warpgroup kernels keep up to 25 barriers in dynamic shared memory, and cuBLASLt's more, which the tools cannot count:
they are told.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

PROGRAMS = {
    "rows": ["row_check", "--small"],
    "attention-rows": ["attention_check", "--small", "--path", "rows"],
    "attention-simple": ["attention_check", "--small", "--path", "simple"],
    "attention-mma": ["attention_check", "--small", "--path", "mma"],
    "attention-hopper": ["attention_check", "--small", "--path", "hopper"],
    "mamba-conv": ["mamba_check", "--few", "--part", "conv"],
    "mamba-tokens": ["mamba_check", "--few", "--part", "tokens"],
    "mamba-scan": ["mamba_check", "--few", "--part", "scan"],
    "products": ["gemm_check", "few"],
    "quantisers": ["gpu_check", "--check", "--cases", "60"],
}
BARRIERS = ["--num-cuda-barriers", "256"]
TOOLS = {"racecheck": BARRIERS, "memcheck": [], "synccheck": BARRIERS, "initcheck": []}


def sanitizer():
    places = [shutil.which("compute-sanitizer")] + [
        os.path.join(home, part) for home in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda")
        for part in ("bin/compute-sanitizer", "compute-sanitizer/compute-sanitizer")]
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    sys.exit("compute-sanitizer is neither on PATH nor below CUDA_HOME or /usr/local/cuda")


def places(text):
    """Where errors were, most frequent first: file and line if the tool knows them, else kernel and offset."""
    found = collections.Counter()
    parts = []
    for line in text.splitlines():
        access = re.search(r"(Read|Write|Atomic)\w* access at (.*?)(?: \[(\d+) hazards?\])?$", line)
        if access:
            where = re.search(r"in (\S+:\d+)", access[2])
            if "Race reported" in line:
                parts = []
            parts.append(f"{access[1].lower()} {where[1] if where else access[2][-60:]}")
            if access[3]:
                found[" and ".join(parts)] += int(access[3])
            continue
        error = re.match(r"=+ (Invalid .*|Uninitialized .*|Barrier error.*|Warpgroup .*|Program hit .*|Warning: .*)", line)
        if error:
            parts = [error[1]]
        at = re.match(r"=+\s+at (.*)", line)
        if at and parts:
            where = re.search(r"in (\S+:\d+)", at[1])
            found[f"{parts[0]} at {where[1] if where else at[1][-60:]}"] += 1
            parts = []
    return [f"{count} x {what}" for what, count in found.most_common(8)]


def run(tool_path, programs, tool, name, seconds, output):
    command = [tool_path, "--tool", tool, *TOOLS[tool], str(programs / PROGRAMS[name][0]), *PROGRAMS[name][1:]]
    log = output / f"{tool}-{name}.log"
    began = time.monotonic()
    with open(log, "w") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    took = time.monotonic() - began
    text = log.read_text(errors="replace")
    summary = re.findall(r"(?:ERROR SUMMARY: (\d+) errors?|RACECHECK SUMMARY: (\d+) hazards?)", text)
    count = int(summary[-1][0] or summary[-1][1]) if summary else None
    if code is None:
        verdict = f"timed out after {seconds:.0f} s"
    elif count is None:
        verdict = f"no summary, exit {code}"
    elif count:
        verdict = f"{count} " + ("hazards" if tool == "racecheck" else "errors")
    elif code:
        verdict = f"no errors, but exit {code} of the program"
    else:
        verdict = "clean"
    return verdict, took, places(text) if verdict != "clean" else []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs_directory", metavar="BIN", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=60, help="for a tool and program")
    parser.add_argument("--total", type=float, default=540, help="seconds after which none is begun")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("sanitizer"))
    arguments = parser.parse_args()
    tool_path = sanitizer()
    arguments.output.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([tool_path, "--version"], capture_output=True, text=True).stdout
    print(next((line for line in version.splitlines() if "ersion" in line), tool_path))
    end = time.monotonic() + arguments.total
    directory = arguments.programs_directory.resolve()

    def one(tool, name):
        left = end - time.monotonic()
        if left < 5:
            return "not run: out of time", 0.0, []
        return run(tool_path, directory, tool, name, min(arguments.seconds, left), arguments.output)

    clean = True
    with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
        jobs = {pool.submit(one, tool, name): (tool, name) for tool in arguments.tools for name in arguments.programs}
        for job in concurrent.futures.as_completed(jobs):
            verdict, took, where = job.result()
            clean &= verdict == "clean"
            print(f"{jobs[job][0]:10} {jobs[job][1]:17} {took:5.0f} s  {verdict}", flush=True)
            for line in where:
                print(f"    {line}", flush=True)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
