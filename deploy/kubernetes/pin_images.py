"""Writes into an overlay which images its pods run: by the digests of the files that deploy/images/build.sh has made.

    python3 deploy/kubernetes/pin_images.py [--name REGISTRY/nibble] [--overlay FOLDER] COORDINATOR.tar WORKER.tar

    --name      where the images are; default: as it is. Push each file there with its bytes unchanged:
                skopeo copy oci-archive:FILE docker://REGISTRY/nibble:TAG
    --overlay   default: overlays/gpu beside this file

A tag can be moved to another image; a digest is the image's own bytes.
"""

import argparse
import json
import pathlib
import re
import sys
import tarfile


def image_of(path):
    """Tag and digest of the one image in an OCI archive."""
    with tarfile.open(path) as archive:
        (manifest,) = json.load(archive.extractfile("index.json"))["manifests"]
    return manifest["annotations"]["org.opencontainers.image.ref.name"].rpartition(":")[2], manifest["digest"]


def pinned(text, image, name, tag, digest):
    """The kustomization with this image in the line of its entry."""
    entry = re.search(rf"\{{name: {image}, newName: ([^,}}]+), newTag: [^,}}]+, digest: [^,}}]+\}}", text)
    if not entry:
        sys.exit(f"pin_images.py: the kustomization has no image {image} with newName, newTag and digest")
    line = f"{{name: {image}, newName: {name or entry[1]}, newTag: {tag}, digest: '{digest}'}}"
    return text[: entry.start()] + line + text[entry.end() :]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name")
    parser.add_argument("--overlay", type=pathlib.Path, default=pathlib.Path(__file__).parent / "overlays/gpu")
    parser.add_argument("coordinator")
    parser.add_argument("worker")
    given = parser.parse_args()
    path = given.overlay / "kustomization.yaml"
    text = path.read_text()
    for image, archive in (("nibble-coordinator", given.coordinator), ("nibble-worker", given.worker)):
        tag, digest = image_of(archive)
        text = pinned(text, image, given.name, tag, digest)
        print(f"{image}: {tag}, {digest}")
    path.write_text(text)


if __name__ == "__main__":
    main()
