"""A cluster copies its checkpoints to an S3 server that others wrote (moto), through everything that goes wrong there, is lost with all its disks,
and another cluster continues the job from the copy, bit for bit.

    object_store_cluster_check.py NIBBLE COORDINATOR WORKER TRAINER DIRECTORY

moto checks every signature and what its key may do. Between the cluster and moto is a door that can shut in the middle of a request, as a server does
that dies: what moto has stored by then stays, as on the disk of a server that is started again.
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
import threading
import time

import boto3
import moto.settings
from moto.core.responses import ActionAuthenticatorMixin
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


class Door:
    """Forwards connections to a server until it shuts, by itself at a text of a request if it is told to."""

    def __init__(self, server_port):
        self.server_port, self.port = server_port, free_port()
        self.shut_at, self.sockets, self.lock = None, set(), threading.Lock()
        self.open()

    def open(self):
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self.accept, args=(self.listener,), daemon=True).start()

    def shut(self):
        with self.lock:
            # A thread that waits for a connection would keep the port.
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
            for one in self.sockets:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the other side was faster
            self.sockets.clear()

    def accept(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.server_port))
            with self.lock:
                self.sockets |= {client, server}
            threading.Thread(target=self.pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client, False), daemon=True).start()

    def pump(self, source, sink, is_request):
        tail = b""
        try:
            while piece := source.recv(1 << 16):
                tail = tail[-64:] + piece
                if is_request and self.shut_at and self.shut_at in tail:
                    self.shut_at = None
                    self.shut()
                    return
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # shut


class Cluster:
    """A coordinator and a worker with two slots, below a directory of their own."""

    def __init__(self, programs, directory, environment, place):
        self.nibble, self.coordinator, self.worker, self.trainer = programs
        self.directory, self.place = directory, place
        self.port = free_port()
        self.environment = dict(environment, NIBBLE_SERVER=f"127.0.0.1:{self.port}", HOME=str(directory), NIBBLE_HOME=str(directory / "home"))
        self.processes = {}
        (directory / "log").mkdir(parents=True)
        self.start("coordinator", {}, self.coordinator, "--store", directory / "store", "--cluster", "lab", "--listen", f"127.0.0.1:{self.port}",
                   "--http", "", "--tick-ms", "20", "--object-store", place, "--object-store-keep", "2")

    def start_worker(self, **environment):
        self.start("worker", environment, self.worker, "--coordinator", f"127.0.0.1:{self.port}", "--data", self.directory / "worker", "--name", "w1",
                   "--slots", "2", "--http", "", "--beat-ms", "100", "--trainer", self.trainer)

    def start(self, name, environment, *words):
        with open(self.directory / "log" / name, "ab") as log:
            self.processes[name] = subprocess.Popen([str(word) for word in words], env=dict(self.environment, **environment), stdout=log, stderr=log)

    def stop_worker(self):
        worker = self.processes.pop("worker")
        worker.terminate()
        worker.wait(PATIENCE)

    def kill(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.processes = {}

    def run(self, *words, code=0):
        done = subprocess.run([self.nibble, *map(str, words)], env=self.environment, capture_output=True, text=True)
        if done.returncode != code:
            for log in (self.directory / "log").iterdir():
                print(f"{log}:\n{log.read_text()[-3000:]}")
            raise AssertionError(f"{words}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def submit(self, spec, name):
        self.run("job", "submit", spec, "--name", name, "--timeout", "30s")
        return next(one["id"] for one in json.loads(self.run("job", "list", "-o", "json"))["jobs"] if one["name"] == name)

    def uploads(self, job):
        return json.loads(self.run("checkpoint", "list", job, "-o", "json")).get("uploads", {})

    def copies(self, job):
        """Steps of the copies, the newest last."""
        return [int(one["step"]) for one in self.uploads(job).get("copies", [])]

    def expect_failure(self, job, reason):
        """A user sees the first failure, why, and when the next try is."""
        eventually(lambda: int(self.uploads(job).get("failures", 0)) > 0, f"a failed upload: {reason}")
        for text in (self.run("checkpoint", "list", job), self.run("job", "describe", job)):
            assert reason in text and "has failed" in text and "the next try is due in" in text, text
        assert reason in self.run("job", "events", job), self.run("job", "events", job)


def write_spec(path, corpus, steps, every, more_model=""):
    path.write_text(f"""name: train
model: {{preset: tiny-transformer{more_model}}}
recipe: nvfp4
data: {{train: [{corpus}], sequence: 16, validation_fraction: 0.1}}
training: {{steps: {steps}, batch: 4, seed: 3}}
optimizer: {{lr: 0.002, warmup_steps: 2, decay_fraction: 0.3}}
metrics: {{log_every: 1}}
checkpoints: {{every: {every}, keep_last: 2}}
resources: {{ranks: 2, threads: 1}}
""")
    return path


class Bucket:
    """What is in the store, asked for by a client that others wrote."""

    def __init__(self, port):
        def client(service, access_key, secret_key):
            return boto3.client(service, endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", aws_access_key_id=access_key,
                                aws_secret_access_key=secret_key)

        iam = client("iam", "root", "root")
        iam.create_user(UserName="worker")
        key = iam.create_access_key(UserName="worker")["AccessKey"]
        allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        iam.put_user_policy(UserName="worker", PolicyName="s3", PolicyDocument=json.dumps(allowed))
        # From now on every signature is checked.
        moto.settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
        ActionAuthenticatorMixin.request_count = 0
        self.key, self.secret = key["AccessKeyId"], key["SecretAccessKey"]
        self.client = client("s3", self.key, self.secret)

    def create(self):
        self.client.create_bucket(Bucket="runs")

    def unfinished(self):
        return [one["Key"] for one in self.client.list_multipart_uploads(Bucket="runs").get("Uploads", [])]

    def copies(self, job):
        """Names of the complete copies; every object of the job belongs to one of them."""
        copies = json.loads(self.client.get_object(Bucket="runs", Key=f"lab/{job}/nibble-copies.json")["Body"].read())["copies"]
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket="runs", Prefix=f"lab/{job}/")
        for key in (one["Key"] for page in pages for one in page["Contents"]):
            name = key.split("/")[2]
            assert name in [*copies, "nibble-copies.json"], (key, copies)
        for copy in copies:
            listed = json.loads(self.client.get_object(Bucket="runs", Key=f"lab/{job}/{copy}/nibble-files.json")["Body"].read())["files"]
            assert any("checkpoints/" in one["name"] for one in listed), listed
        return copies


def check_refusals(cluster, bucket, spec):
    """Wrong credentials, then no bucket: jobs end all the same, and their last checkpoints are uploaded once the cause is gone."""
    cluster.start_worker(AWS_SECRET_ACCESS_KEY="wrong")
    refused = cluster.submit(spec, "refused")
    cluster.expect_failure(refused, "403 SignatureDoesNotMatch")
    cluster.run("job", "wait", refused, "--timeout", f"{PATIENCE}s")
    cluster.stop_worker()
    cluster.start_worker()
    homeless = cluster.submit(spec, "homeless")
    cluster.expect_failure(homeless, "404 NoSuchBucket")
    cluster.run("job", "wait", homeless, "--timeout", f"{PATIENCE}s")
    bucket.create()
    for job in (refused, homeless):
        eventually(lambda job=job: cluster.copies(job)[-1:] == [20], f"the upload of {job}")
        assert "uploaded" in cluster.run("checkpoint", "list", job)
    print("object_store_cluster_check: wrong credentials and a missing bucket were reported, and the uploads made when they were right")


def check_death_in_the_middle(cluster, bucket, door, spec):
    """The server dies at the second part of a file."""
    door.shut_at = b"partNumber=2&"
    large = cluster.submit(spec, "large")
    eventually(lambda: int(cluster.uploads(large).get("failures", 0)) > 0, "the failure of an upload whose server has died")
    assert door.shut_at is None, "no file was large enough for parts"
    left = bucket.unfinished()
    assert len(left) == 1, left
    cluster.run("job", "wait", large, "--timeout", f"{PATIENCE}s")
    door.open()
    eventually(lambda: cluster.copies(large), "the upload after the server is back")
    assert bucket.unfinished() == [], bucket.unfinished()
    bucket.copies(large)
    print(f"object_store_cluster_check: a server died in the middle of {left[0]}; the next upload has aborted its parts")

    # A daemon that stops in the middle aborts its upload itself.
    seen = threading.Event()
    forward = door.pump

    def stop_worker_at_the_second_part(source, sink, is_request):
        if is_request:
            while piece := source.recv(1 << 16):
                if b"partNumber=2&" in piece and not seen.is_set():
                    seen.set()
                    cluster.processes["worker"].terminate()
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        else:
            forward(source, sink, is_request)

    door.shut()
    door.pump = stop_worker_at_the_second_part
    door.open()
    stopped = cluster.submit(spec, "stopped")
    assert seen.wait(PATIENCE)
    cluster.processes.pop("worker").wait(PATIENCE)
    assert bucket.unfinished() == [], bucket.unfinished()
    door.shut()
    door.pump = forward
    door.open()
    cluster.start_worker()
    cluster.run("job", "wait", stopped, "--timeout", f"{PATIENCE}s")
    eventually(lambda: cluster.copies(stopped)[-1:] == [4], "the upload by the daemon that was started again")
    bucket.copies(stopped)
    print("object_store_cluster_check: a daemon that stopped in the middle of an upload has aborted it, and made it after its start")


def main():
    *programs, work = sys.argv[1:]
    programs = [os.path.abspath(program) for program in programs]
    work = pathlib.Path(work).absolute() / "object-store-cluster"
    work.mkdir(parents=True)
    corpus = work / "corpus.txt"
    corpus.write_text("".join(f"the {a} {b} runs to the {c}.\n\n" for a in ("red", "old", "big") for b in ("fox", "dog", "cat")
                              for c in ("hill", "lake", "tree")) * 40)
    spec = write_spec(work / "job.yaml", corpus, STEPS, 50)
    short = write_spec(work / "short.yaml", corpus, 20, 10)
    # A shard of more than two parts of 16 MiB.
    large = write_spec(work / "large.yaml", corpus, 4, 2, ", vocab: 120000")

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    port = server.get_host_and_port()[1]
    bucket, door = Bucket(port), Door(port)
    environment = dict(os.environ, AWS_ENDPOINT_URL=f"http://127.0.0.1:{door.port}", AWS_ACCESS_KEY_ID=bucket.key, AWS_SECRET_ACCESS_KEY=bucket.secret)

    first = Cluster(programs, work / "first", environment, "s3://runs/lab")
    check_refusals(first, bucket, short)
    check_death_in_the_middle(first, bucket, door, large)

    job = first.submit(spec, "train")
    first.run("job", "wait", job, "--timeout", f"{PATIENCE}s")
    eventually(lambda: first.copies(job)[-1:] == [STEPS], "the upload of the last checkpoint")
    assert len(bucket.copies(job)) <= 2, bucket.copies(job)
    undisturbed = losses(work / "first/worker/jobs" / job / "events.jsonl")
    assert sorted(undisturbed) == list(range(STEPS)), len(undisturbed)
    again = first.submit(spec, "again")
    done = eventually(lambda: [step for step in first.copies(again) if step < STEPS], "an upload while it trains")
    first.kill()
    shutil.rmtree(work / "first")
    print(f"object_store_cluster_check: lost the cluster and its disks after the upload of step {max(done)}")

    copies = json.loads(bucket.client.get_object(Bucket="runs", Key=f"lab/{again}/nibble-copies.json")["Body"].read())["copies"]
    assert 1 <= len(copies) <= 2, copies
    began = time.monotonic()
    second = Cluster(programs, work / "second", environment, "s3://runs/lab")
    second.run("checkpoint", "pull", f"s3://runs/lab/{again}", work / "second/worker/jobs" / again)
    second.start_worker()
    eventually(lambda: again in second.run("checkpoint", "orphans", "--timeout", "30s"), "the orphan")
    second.run("checkpoint", "adopt", again)
    second.run("job", "resume", again)
    second.run("job", "wait", again, "--timeout", f"{PATIENCE}s")
    seconds = time.monotonic() - began
    resumed = losses(work / "second/worker/jobs" / again / "events.jsonl")
    first_step = min(resumed)
    assert first_step == int(copies[-1].split("-")[1]), (first_step, copies)
    assert sorted(resumed) == list(range(first_step, STEPS))
    for step, loss in resumed.items():
        assert loss == undisturbed[step], (step, loss, undisturbed[step])
    # It continues the copies where the first cluster was.
    eventually(lambda: second.copies(again)[-1:] == [STEPS], "the upload by the second cluster")
    assert len(bucket.copies(again)) <= 2, bucket.copies(again)
    second.kill()
    server.stop()
    print(f"object_store_cluster_check: another cluster continued from step {first_step} to {STEPS} with the same losses, bit for bit, "
          f"{seconds:.1f} s after its start")


main()
