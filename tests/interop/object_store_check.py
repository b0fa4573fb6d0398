"""Compares `nibble checkpoint push | pull` with S3 servers and clients that others wrote.

    object_store_check.py NIBBLE DIRECTORY

Starts moto's S3 server, which verifies nothing of a signature but its presence, uploads with nibble, reads the objects
with boto3, uploads a copy with boto3, and downloads it with nibble. Signatures are checked against the vectors that
AWS has published (common/s3/signature_test.cc).
"""

import hashlib
import json
import logging
import os
import pathlib
import subprocess
import sys

import boto3
from moto.server import ThreadedMotoServer

LIST = "nibble-files.json"


def run(nibble, environment, *words, code=0):
    done = subprocess.run([nibble, "checkpoint", *words], env=environment, capture_output=True, text=True)
    assert done.returncode == code, f"{words}: {done.returncode}: {done.stderr}"
    return done.stdout + done.stderr


def main():
    nibble, work = sys.argv[1], pathlib.Path(sys.argv[2]) / "object-store"
    source = work / "export"
    (source / "shard-00000").mkdir(parents=True)
    (source / "config.json").write_text("{}\n")
    (source / "empty").write_bytes(b"")
    # Three parts of 16 MiB, so that it is a multipart upload.
    (source / "shard-00000" / "a name with + and ü").write_bytes(os.urandom(40 << 20))

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    environment = dict(os.environ, AWS_ENDPOINT_URL=endpoint, AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key",
                          aws_secret_access_key="secret")
    client.create_bucket(Bucket="runs")

    out = run(nibble, environment, "push", str(source), "s3://runs/train-1/export")
    assert "uploaded 3 files" in out, out
    keys = sorted(one["Key"] for one in client.list_objects_v2(Bucket="runs")["Contents"])
    files = sorted(str(path.relative_to(source)) for path in source.rglob("*") if path.is_file())
    assert keys == sorted(f"train-1/export/{name}" for name in [*files, LIST]), keys
    for name in files:
        body = client.get_object(Bucket="runs", Key=f"train-1/export/{name}")["Body"].read()
        assert body == (source / name).read_bytes(), name
    etag = client.head_object(Bucket="runs", Key="train-1/export/shard-00000/a name with + and ü")["ETag"]
    assert etag.endswith('-3"'), etag
    assert not client.list_multipart_uploads(Bucket="runs").get("Uploads")

    assert "--overwrite" in run(nibble, environment, "push", str(source), "s3://runs/train-1/export", code=1)
    run(nibble, environment, "pull", "s3://runs/train-1/export", str(work / "pulled"))
    for name in files:
        assert (work / "pulled" / name).read_bytes() == (source / name).read_bytes(), name

    # A copy that boto3 has uploaded.
    listed = []
    for name in files:
        content = (source / name).read_bytes()
        client.put_object(Bucket="runs", Key=f"boto/{name}", Body=content)
        listed.append({"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    client.put_object(Bucket="runs", Key=f"boto/{LIST}", Body=json.dumps({"version": 1, "files": listed}).encode())
    run(nibble, environment, "pull", "s3://runs/boto", str(work / "from-boto"))
    assert (work / "from-boto" / "config.json").read_text() == "{}\n"

    client.put_object(Bucket="runs", Key="boto/config.json", Body=b"{x\n")
    assert "SHA-256" in run(nibble, environment, "pull", "s3://runs/boto", str(work / "damaged"), code=1)
    assert not (work / "damaged").exists()
    assert "NoSuchBucket" in run(nibble, environment, "push", str(source), "s3://missing/x", code=102)
    server.stop()
    print("object_store_check: push and pull agree with moto and boto3: 3 files, 40 MiB in 3 parts")


main()
