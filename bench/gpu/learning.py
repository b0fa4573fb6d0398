#!/usr/bin/env python3
"""The gap in loss of 4-bit training on real text: one model on the same batches under several recipes.

    bench/gpu/learning.py BIN [--text DIR_OR_FILE...] [--seconds 540] [--output DIR]

BIN: the directory of nibble and nibble-trainer. The text is source code and documentation: the files below --text
(directories, files and tar archives; an incomplete archive is read up to its end), by default those of this node's own
Python and CUDA installations. Files with equal bytes are read once. The hash of a document's bytes decides its place in
the data and whether it is held out, so one node always makes the same data.

On several cards (--cards 4) runs go side by side, each on a card of its own.

A run that does not end within --seconds is stopped with a checkpoint. The same command resumes it; it exits with 3
until all runs are done. Writes losses.csv (every step of every run), validation.csv and table.txt to the output
directory, and prints the table last: training loss (mean of the last twentieth of the steps), loss on held-out
documents, the gaps to BF16, and tokens per second (median over the steps).
"""

import argparse
import concurrent.futures
import csv
import hashlib
import json
import lzma
import multiprocessing
import os
import pathlib
import queue
import signal
import statistics
import subprocess
import sys
import sysconfig
import tarfile
import time

SUFFIXES = {".py", ".pyi", ".pyx", ".h", ".hpp", ".hh", ".cuh", ".cu", ".c", ".cc", ".cpp", ".inl", ".inc", ".s",
            ".rst", ".md", ".txt", ".js", ".ts", ".sh", ".pl", ".pm", ".cmake", ".proto", ".java", ".go", ".rs"}
ARCHIVES = (".tar", ".tar.xz", ".tar.gz", ".tar.bz2", ".tgz", ".txz")
FEWEST_BYTES, MOST_BYTES = 256, 1 << 20
LONGEST_LINE = 2000
HELD_OUT = 64  # one document in so many

# Name, recipe, planned changes. The paper switches the forward pass to BF16 for its last 18 %.
RUNS = (
    ("bf16", "bf16", ""),
    ("nvfp4", "nvfp4", ""),
    ("mxfp4", "mxfp4", ""),
    ("nvfp4, 82 %", "nvfp4", 'changes: [{at: "82%", set: {fprop: bf16}, reason: as in the paper}]'),
)

# A transformer, because it makes more tokens per second and parameter than the hybrid (docs/results/gpu.md); heads of
# 128, which the attention kernels are fastest for; 29.5 M parameters without embedding and head.
CARD = {"layers": 6, "d_model": 640, "d_ff": 2560, "heads": 5, "head_dim": 128, "vocabulary": 8192, "sequence": 1024,
        "batch": 256, "micro_batch": 64}
SMALL = {"layers": 2, "d_model": 64, "d_ff": 128, "heads": 2, "head_dim": 32, "vocabulary": 512, "sequence": 128,
         "batch": 8, "micro_batch": 0}

JOB = """name: %(name)s
model:
  name: %(model)s
  pattern: "%(pattern)s"
  vocab: %(vocabulary)d
  d_model: %(d_model)d
  d_ff: %(d_ff)d
  heads: %(heads)d
  kv_heads: %(heads)d
  head_dim: %(head_dim)d
  positions: rope
  activation: relu2
  scale_output_init: true
recipe: %(recipe)s
%(changes)s
data: {train: [%(train)s], validation: [{name: held-out, path: %(validation)s}], sequence: %(sequence)d}
training: {steps: %(steps)d, batch: %(batch)d, micro_batch: %(micro_batch)d, seed: %(seed)d,
           validate_every: %(validate_every)d, validation_batches: %(validation_batches)d}
optimizer: {lr: %(lr)g, final_lr: %(final_lr)g, schedule: wsd, warmup_steps: %(warmup)d, decay_fraction: 0.2}
metrics: {log_every: 1, precision_every: %(precision_every)d}
checkpoints: {every: 0, at_end: true, keep_last: 1}
resources: {ranks: 1, device: %(device)s}
output: {directory: %(output)s}
"""


def document(data):
    """The hash and text of a file's bytes; None for what is not text that people wrote."""
    if not FEWEST_BYTES <= len(data) <= MOST_BYTES or b"\0" in data:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if max(map(len, data.splitlines()), default=0) > LONGEST_LINE:
        return None
    return hashlib.sha256(data).hexdigest(), text


def read(path):
    try:
        return document(pathlib.Path(path).read_bytes())
    except OSError:
        return None


def in_archive(path):
    """Documents of an archive, as far as it can be read; incomplete ones end with an error."""
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                if member.isfile() and pathlib.PurePath(member.name).suffix.lower() in SUFFIXES:
                    yield document(archive.extractfile(member).read())
    except (tarfile.TarError, EOFError, lzma.LZMAError, OSError) as error:
        print(f"{path}: read up to its end: {error}", flush=True)


def own_trees():
    python = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")] + [p for p in sys.path if p]
    trees = python + ["/usr/local/cuda", "/usr/lib/python3", "/usr/local/lib", "/usr/include", "/usr/share/doc",
                      "/usr/share/perl", "/usr/src", "/opt"]
    return [tree for tree in trees if os.path.isdir(tree)]


def gather(roots, most_bytes):
    """Documents by their hash, sorted."""
    paths, archives, seen = [], [], set()
    for root in roots:
        if os.path.isfile(root):
            (archives if root.lower().endswith(ARCHIVES) or ".tar." in root.lower() else paths).append(root)
            continue
        if not os.path.isdir(root):
            sys.exit(f"--text: {root} is no file and no directory")
        real = os.path.realpath(root)
        for directory, children, files in os.walk(real):
            children[:] = [c for c in children if os.path.join(directory, c) not in seen]
            seen.add(directory)
            paths += [os.path.join(directory, f) for f in files if os.path.splitext(f)[1].lower() in SUFFIXES]
    found = {}
    with multiprocessing.Pool() as pool:
        for one in pool.imap_unordered(read, sorted(set(paths)), chunksize=64):
            if one:
                found[one[0]] = one[1]
    for path in archives:
        found.update(one for one in in_archive(path) if one)
    kept, total = {}, 0
    for digest in sorted(found):
        total += len(found[digest])
        if total > most_bytes:
            print(f"text beyond {most_bytes} bytes is left out")
            break
        kept[digest] = found[digest]
    return kept


def tokenize(nibble, source, output, more):
    command = [nibble, "data", "tokenize", str(source), "--output-dir", str(output), "--split", "file",
               "--validation-fraction", "0", "--overwrite", "-o", "json", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def make_data(programs, root, arguments, sizes):
    """Shards of training and held-out documents; what they hold."""
    report = root / "text.json"
    if report.exists():
        return json.loads(report.read_text())
    began = time.monotonic()
    documents = gather(arguments.text or own_trees(), arguments.most_text)
    if len(documents) < HELD_OUT:
        sys.exit(f"{len(documents)} documents are too few: at least {HELD_OUT} are needed")
    held = 0
    with open(root / "train.jsonl", "w") as train, open(root / "held.jsonl", "w") as held_out:
        for digest, text in documents.items():
            out = int(digest[:8], 16) % HELD_OUT == 0
            held += out
            (held_out if out else train).write(json.dumps({"text": text}) + "\n")
    if held == 0:
        sys.exit(f"no document of {len(documents)} is held out")
    gathered = time.monotonic()
    nibble = str(programs / "nibble")
    train = tokenize(nibble, root / "train.jsonl", root / "train",
                     ["--train-tokenizer", str(sizes["vocabulary"]), "--tokenizer-type", "bpe", "--sample-bytes",
                      str(arguments.sample_bytes)])
    held_out = tokenize(nibble, root / "held.jsonl", root / "held", ["--tokenizer", train["model"]])
    made = {"vocabulary": train["vocabulary"], "train": train["train"], "held": held_out["train"]}
    report.write_text(json.dumps(made))
    (root / "train.jsonl").unlink()
    (root / "held.jsonl").unlink()
    print(f"text gathered in {gathered - began:.0f} s, tokens made in {time.monotonic() - gathered:.0f} s")
    return made


def steps_of(output):
    """Events of steps by step and of validations, the last of each if a run was resumed; the paths of its products."""
    steps, validations, paths = {}, {}, set()
    log = output / "events.jsonl"
    for line in log.read_text().split("\n")[:-1] if log.exists() else []:
        event = json.loads(line)
        if event["event"] == "step":
            steps[event["step"]] = event
        elif event["event"] == "validation":
            validations[event["step"]] = event
        elif event["event"] == "products":
            paths.add(event["path"])
    return steps, validations, paths


def train(programs, root, run, values, deadline, cards):
    """Waits for one of the cards, a queue. True once the run is done; False if it failed, or was stopped at the deadline."""
    name, recipe, changes = run
    output = root / name.replace(", ", "-").replace(" %", "")
    spec = root / (output.name + ".yaml")
    spec.write_text(JOB % dict(values, name=output.name, recipe=recipe, changes=changes, output=output))
    steps, validations, _ = steps_of(output)
    if len(steps) == values["steps"] and values["steps"] in validations:
        return True
    left = deadline - time.monotonic()
    if left < 30:
        return False
    card = cards.get()
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES=str(card)) if card is not None else None
    with open(root / (output.name + ".log"), "a") as log:
        trainer = subprocess.Popen([str(programs / "nibble-trainer"), "--spec", str(spec), "--quiet"], stdout=log,
                                   stderr=log, env=environment)
        try:
            code = trainer.wait(timeout=left - 15)
        except subprocess.TimeoutExpired:
            trainer.send_signal(signal.SIGTERM)  # it writes a checkpoint
            code = trainer.wait()
    cards.put(card)
    if code not in (0, 101):
        print(f"{name}: exit {code}: {(root / (output.name + '.log')).read_text().strip()[-400:]}", flush=True)
    return code == 0


def percent(value, reference):
    return f"{100 * (value / reference - 1):+.2f} %" if reference else "-"


def report(root, runs, tokens_per_step, last):
    """Writes the curves; returns the lines of the table."""
    lines = [f"{'recipe':12} {'steps':>6} {'tokens':>11} {'loss':>8} {'gap':>8} {'held out':>9} {'gap':>8} "
             f"{'tokens/s':>9}  products"]
    reference = None
    with open(root / "losses.csv", "w", newline="") as losses, open(root / "validation.csv", "w", newline="") as held:
        curve, checks = csv.writer(losses), csv.writer(held)
        curve.writerow(("recipe", "step", "tokens", "loss", "gradient_norm", "learning_rate", "updated"))
        checks.writerow(("recipe", "steps", "loss"))
        for name, _, _ in runs:
            output = root / name.replace(", ", "-").replace(" %", "")
            steps, validations, paths = steps_of(output)
            if not steps:
                continue
            for number, step in sorted(steps.items()):
                curve.writerow((output.name, number, step["tokens"], step["loss"], step["gradient_norm"],
                                step["learning_rate"], step.get("updated", True)))
            for number, check in sorted(validations.items()):
                checks.writerow((output.name, number, check["loss"]))
            final = statistics.mean(steps[number]["loss"] for number in sorted(steps)[-last:])
            at = max(validations, default=None)
            held_out = validations[at]["loss"] if at is not None else float("nan")
            if name == "bf16":
                reference = (len(steps), final, held_out)
            # Only runs of the same length are compared.
            beside = reference if reference and reference[0] == len(steps) else (0, None, None)
            rate = tokens_per_step / statistics.median(step["seconds"] for step in steps.values())
            lines.append(f"{name:12} {len(steps):6d} {steps[max(steps)]['tokens']:11d} {final:8.4f} "
                         f"{percent(final, beside[1]):>8} {held_out:9.4f} {percent(held_out, beside[2]):>8} "
                         f"{rate:9.0f}  {', '.join(sorted(paths))}")
    return lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--text", nargs="+", help="default: this node's Python and CUDA trees")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("learning"))
    parser.add_argument("--seconds", type=float, default=540, help="stop, with a checkpoint, before these have passed")
    parser.add_argument("--tokens", type=int, default=200_000_000, help="of each run, at least")
    parser.add_argument("--recipes", nargs="+", choices=[name for name, _, _ in RUNS])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cards", type=int, default=1, help="that runs use side by side")
    parser.add_argument("--model-small", action="store_true", help="a tiny model, to try the script on a CPU")
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--precision-every", type=int, default=0,
                        help="steps between samples of operands; with them the guards, which observe, judge operands, too, and "
                             "guards.txt has what bench/guards/healthy_runs.py says of the runs")
    parser.add_argument("--most-text", type=int, default=800_000_000, help="bytes of text that are used at most")
    parser.add_argument("--sample-bytes", type=int, default=6_000_000, help="of text that the tokenizer is trained on")
    for size in CARD:
        parser.add_argument("--" + size.replace("_", "-"), type=int)
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    programs, root = arguments.programs.resolve(), arguments.output.resolve()
    root.mkdir(parents=True, exist_ok=True)
    sizes = dict(SMALL if arguments.model_small else CARD)
    sizes.update({size: getattr(arguments, size) for size in CARD if getattr(arguments, size) is not None})

    data = make_data(programs, root, arguments, sizes)
    tokens_per_step = sizes["batch"] * sizes["sequence"]
    steps = -(-arguments.tokens // tokens_per_step)
    epochs = steps * tokens_per_step / data["train"]["tokens"]
    inside = sizes["layers"] * sizes["d_model"] * (4 * sizes["heads"] * sizes["head_dim"] + 2 * sizes["d_ff"])
    head = data["vocabulary"] * sizes["d_model"]
    print(f"text: {data['train']['documents']} documents, {data['train']['bytes']} bytes, {data['train']['tokens']} "
          f"tokens; held out: {data['held']['documents']} documents, {data['held']['tokens']} tokens; vocabulary "
          f"{data['vocabulary']}")
    print(f"{steps} steps of {tokens_per_step} tokens are {epochs:.2f} epochs; linear layers have {inside / 1e6:.1f} M "
          f"parameters, embedding and head {2 * head / 1e6:.1f} M", flush=True)

    values = dict(sizes, vocabulary=data["vocabulary"], model=f"transformer-{(inside + 2 * head) / 1e6:.0f}m",
                  pattern="*-" * sizes["layers"], train=data["train"]["path"], validation=data["held"]["path"],
                  steps=steps, seed=arguments.seed, validate_every=max(1, steps // 8), validation_batches=8,
                  precision_every=arguments.precision_every, lr=arguments.lr, final_lr=arguments.lr / 100, warmup=max(1, steps // 10), device=arguments.device)
    runs = [run for run in RUNS if arguments.recipes is None or run[0] in arguments.recipes]
    cards = queue.Queue()
    for card in range(arguments.cards):
        cards.put(card if arguments.cards > 1 else None)
    with concurrent.futures.ThreadPoolExecutor(arguments.cards) as pool:
        done = all(list(pool.map(lambda run: train(programs, root, run, values, deadline, cards), runs)))
    lines = report(root, runs, tokens_per_step, max(1, steps // 20))
    if not done:
        lines.append("NOT DONE: run the same command again, it resumes from the checkpoints")
    (root / "table.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    guards = pathlib.Path(__file__).resolve().parents[1] / "guards/healthy_runs.py"
    if arguments.precision_every > 0:
        said = subprocess.run([sys.executable, str(guards), "--runs", str(root)], stdout=subprocess.PIPE, text=True).stdout
        (root / "guards.txt").write_text(said)
        print(said, end="")
    return 0 if done else 3


if __name__ == "__main__":
    sys.exit(main())
