"""A cluster copies its checkpoints to an S3 server that others wrote (moto), is lost with all its disks, and another cluster continues
the job from the copy, bit for bit.

    object_store_cluster_check.py NIBBLE COORDINATOR WORKER TRAINER DIRECTORY
"""

import json
import logging
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import boto3
from moto.server import ThreadedMotoServer

PATIENCE = 300
STEPS = 600


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def eventually(condition, what):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


def losses(path):
    """Of each step the last one logged."""
    found = {}
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "step":
            found[event["step"]] = event["loss"]
    return found


class Cluster:
    """A coordinator and a worker with two slots, below a directory of their own."""

    def __init__(self, programs, directory, environment, place):
        self.nibble, self.coordinator, self.worker, self.trainer = programs
        self.directory, self.place = directory, place
        self.port = free_port()
        self.environment = dict(environment, NIBBLE_SERVER=f"127.0.0.1:{self.port}", HOME=str(directory), NIBBLE_HOME=str(directory / "home"))
        self.processes = []
        (directory / "log").mkdir(parents=True)
        self.start("coordinator", self.coordinator, "--store", directory / "store", "--cluster", "lab", "--listen", f"127.0.0.1:{self.port}",
                   "--http", "", "--tick-ms", "20", "--object-store", place, "--object-store-keep", "2")

    def start_worker(self):
        self.start("worker", self.worker, "--coordinator", f"127.0.0.1:{self.port}", "--data", self.directory / "worker", "--name", "w1",
                   "--slots", "2", "--http", "", "--beat-ms", "100", "--trainer", self.trainer)

    def start(self, name, *words):
        with open(self.directory / "log" / name, "wb") as log:
            self.processes.append(subprocess.Popen([str(word) for word in words], env=self.environment, stdout=log, stderr=log))

    def kill(self):
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.processes = []

    def run(self, *words, code=0):
        done = subprocess.run([self.nibble, *map(str, words)], env=self.environment, capture_output=True, text=True)
        if done.returncode != code:
            for log in (self.directory / "log").iterdir():
                print(f"{log}:\n{log.read_text()[-3000:]}")
            raise AssertionError(f"{words}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def uploads(self, job):
        """State of the newest upload of each checkpoint, by step."""
        found = {}
        listed = json.loads(self.run("checkpoint", "list", job, "-o", "json"))
        for checkpoint in listed.get("checkpoints", []):
            for task in checkpoint.get("tasks", []):
                if task["kind"] == "CHECKPOINT_TASK_KIND_UPLOAD":
                    found[int(checkpoint["ref"]["step"])] = task["state"].removeprefix("CHECKPOINT_TASK_STATE_")
        return found


def main():
    *programs, work = sys.argv[1:]
    programs = [os.path.abspath(program) for program in programs]
    work = pathlib.Path(work).absolute() / "object-store-cluster"
    work.mkdir(parents=True)
    corpus = work / "corpus.txt"
    corpus.write_text("".join(f"the {a} {b} runs to the {c}.\n\n" for a in ("red", "old", "big") for b in ("fox", "dog", "cat")
                              for c in ("hill", "lake", "tree")) * 40)
    spec = work / "job.yaml"
    spec.write_text(f"""name: train
model: tiny-transformer
recipe: nvfp4
data: {{train: [{corpus}], sequence: 16, validation_fraction: 0.1}}
training: {{steps: {STEPS}, batch: 4, seed: 3}}
optimizer: {{lr: 0.002, warmup_steps: 2, decay_fraction: 0.3}}
metrics: {{log_every: 1}}
checkpoints: {{every: 50, keep_last: 2}}
resources: {{ranks: 2, threads: 1}}
""")

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    endpoint = "http://127.0.0.1:%d" % server.get_host_and_port()[1]
    environment = dict(os.environ, AWS_ENDPOINT_URL=endpoint, AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret")

    first = Cluster(programs, work / "first", environment, "s3://runs/lab")
    first.start_worker()
    first.run("job", "submit", spec, "--timeout", "30s")
    job = json.loads(first.run("job", "list", "-o", "json"))["jobs"][0]["id"]
    # The bucket does not exist yet: uploads fail, which is seen, and training continues.
    eventually(lambda: "FAILED" in first.uploads(job).values(), "a failed upload")
    assert "NoSuchBucket" in first.run("job", "events", job), first.run("job", "events", job)
    assert "failed" in first.run("checkpoint", "list", job)
    client.create_bucket(Bucket="runs")
    first.run("job", "wait", job, "--timeout", f"{PATIENCE}s")
    eventually(lambda: first.uploads(job).get(STEPS) == "DONE", "the upload of the last checkpoint")
    undisturbed = losses(work / "first/worker/jobs" / job / "events.jsonl")
    assert sorted(undisturbed) == list(range(STEPS)), len(undisturbed)
    first.run("job", "submit", spec, "--name", "again", "--timeout", "30s")
    again = next(one["id"] for one in json.loads(first.run("job", "list", "-o", "json"))["jobs"] if one["id"] != job)
    done = eventually(lambda: [step for step, state in first.uploads(again).items() if state == "DONE" and step < STEPS], "an upload while it trains")
    first.kill()
    shutil.rmtree(work / "first")
    print(f"lost the cluster after the upload of step {max(done)}")

    # No more than two copies of a job, and every object belongs to one of them.
    copies = json.loads(client.get_object(Bucket="runs", Key=f"lab/{again}/nibble-copies.json")["Body"].read())["copies"]
    assert 1 <= len(copies) <= 2, copies
    began = time.monotonic()
    second = Cluster(programs, work / "second", environment, "s3://runs/lab")
    second.run("checkpoint", "pull", f"s3://runs/lab/{again}", work / "second/worker/jobs" / again)
    second.start_worker()
    eventually(lambda: again in second.run("checkpoint", "orphans", "--timeout", "30s"), "the orphan")
    second.run("checkpoint", "adopt", again)
    second.run("job", "resume", again)
    second.run("job", "wait", again, "--timeout", f"{PATIENCE}s")
    resumed = losses(work / "second/worker/jobs" / again / "events.jsonl")
    first_step = min(resumed)
    assert first_step == int(copies[-1].split("-")[1]), (first_step, copies)
    assert sorted(resumed) == list(range(first_step, STEPS))
    for step, loss in resumed.items():
        assert loss == undisturbed[step], (step, loss, undisturbed[step])
    second.kill()
    server.stop()
    print(f"object_store_cluster_check: another cluster continued from step {first_step} to {STEPS} with the same losses, bit for bit, "
          f"{time.monotonic() - began:.1f} s after its start")


main()
