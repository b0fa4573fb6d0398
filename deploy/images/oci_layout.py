"""Packs a root file system as an OCI image layout (opencontainers/image-spec, version 1), in a tar file.

    python3 deploy/images/oci_layout.py ROOT.tar OUT.tar --tag TAG --created SECONDS --version VERSION [--env NAME=VALUE]...

The image has one layer and runs as user 10001. The same input gives the same bytes: times are --created, members are sorted.
Load it with `podman load -i OUT.tar`, `skopeo copy oci-archive:OUT.tar ...` or `ctr image import OUT.tar`.
"""

import argparse
import gzip
import hashlib
import io
import json
import tarfile
import time

USER = "10001:10001"
# Left out of the layer: device nodes and what a runtime mounts.
SKIPPED = ("./dev/", "./proc/", "./sys/", "./run/")


class Layout:
    """Content-addressed blobs, and the files that name them."""

    def __init__(self, path, created):
        self.tar, self.created = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT), created
        self.files = {}

    def blob(self, data, media):
        digest = hashlib.sha256(data).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = data
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}

    def close(self):
        for name in sorted(self.files):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(self.files[name]), self.created
            self.tar.addfile(info, io.BytesIO(self.files[name]))
        self.tar.close()


def text(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def layer_of(root, created):
    """The root's members, sorted, none newer than `created`."""
    out = io.BytesIO()
    with tarfile.open(root) as source, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as layer:
        members = sorted(source.getmembers(), key=lambda one: one.name)
        # Members that others are hard links to precede those.
        for links in (False, True):
            for one in members:
                name = one.name if one.name.startswith("./") else "./" + one.name
                if one.islnk() != links or name.startswith(SKIPPED) or one.isdev():
                    continue
                data = source.extractfile(one) if one.isreg() else None
                one.mtime, one.pax_headers = min(int(one.mtime), created), {}
                layer.addfile(one, data)
    return out.getvalue()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("out")
    parser.add_argument("--tag", required=True)
    parser.add_argument("--created", type=int, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the containers")
    given = parser.parse_args()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(given.created))
    layout = Layout(given.out, given.created)
    layer = layer_of(given.root, given.created)
    packed = layout.blob(gzip.compress(layer, compresslevel=6, mtime=0), "application/vnd.oci.image.layer.v1.tar+gzip")
    config = {
        "created": stamp,
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": USER,
            "Env": ["PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", *given.env],
            "Cmd": ["nibble", "--help"],
            "WorkingDir": "/",
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "nibble",
                "org.opencontainers.image.version": given.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        "history": [{"created": stamp, "created_by": "deploy/images/build.sh"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": layout.blob(text(config), "application/vnd.oci.image.config.v1+json"),
        "layers": [packed],
    }
    described = layout.blob(text(manifest), manifest["mediaType"])
    described["annotations"] = {"org.opencontainers.image.ref.name": given.tag, "io.containerd.image.name": given.tag}
    described["platform"] = {"architecture": "amd64", "os": "linux"}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described]}
    layout.files["index.json"] = text(index)
    layout.files["oci-layout"] = text({"imageLayoutVersion": "1.0.0"})
    layout.close()
    print(f"image: {given.out}, {described['digest']}: {len(layer) / 1e6:.1f} MB, {packed['size'] / 1e6:.1f} MB compressed")


if __name__ == "__main__":
    main()
