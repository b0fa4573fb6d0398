"""Resources, and configuration that replaces pods."""

import re

from practices.manifests import CLUSTERS, CLUSTER_WIDE, PROGRAMS, WORKER, rule


@rule(*CLUSTERS)
def resources(m):
    for name in PROGRAMS:
        given = m.container(name).get("resources", {})
        for kind, resource in (("requests", "cpu"), ("requests", "memory"), ("limits", "memory")):
            if resource not in given.get(kind, {}):
                yield f"{name}: no {resource} in {kind}"


@rule("gpu")
def a_slot_for_each_card(m):
    given = m.container(WORKER).get("resources", {})
    cards = given.get("requests", {}).get("nvidia.com/gpu")
    if not cards or cards != given.get("limits", {}).get("nvidia.com/gpu"):
        yield f"{WORKER}: requests and limits of nvidia.com/gpu differ"
    if m.flags(WORKER).get("device") != "cuda":
        yield f"{WORKER}: not --device=cuda"
    if "slots" in m.flags(WORKER):
        yield f"{WORKER}: --slots; without it there is one slot for each card"


def bytes_of(quantity):
    number, unit = re.fullmatch(r"(\d+)([KMGT]i)?", str(quantity)).groups()
    return int(number) * 1024 ** ("KMGT".index(unit[0]) + 1 if unit else 0)


@rule(*CLUSTERS)
def shared_memory(m):
    directory = m.volume(WORKER, "/dev/shm").get("emptyDir", {})
    if directory.get("medium") != "Memory" or not directory.get("sizeLimit"):
        yield f"{WORKER}: /dev/shm is not memory with a limit"
    else:
        memory = m.container(WORKER).get("resources", {}).get("limits", {}).get("memory", "0")
        if 2 * bytes_of(directory["sizeLimit"]) > bytes_of(memory):
            yield f"{WORKER}: /dev/shm may take more than half of the memory of {memory}"


@rule(*CLUSTERS)
def temporary_files(m):
    for name in PROGRAMS:
        if not m.volume(name, "/tmp").get("emptyDir", {}).get("sizeLimit"):
            yield f"{name}: /tmp is not a directory with a limit"


@rule(*CLUSTERS)
def configuration_replaces_pods(m):
    for name in PROGRAMS:
        for volume in m.pod(name).get("volumes", []):
            config = volume.get("configMap")
            if config is None:
                continue
            if not re.search(r"-[a-z0-9]{10}$", config["name"]):
                yield f"{name}: the name of {config['name']} has no checksum"
            if "data" not in m.get("ConfigMap", config["name"]):
                yield f"{name}: there is no ConfigMap {config['name']}"


@rule(*CLUSTERS)
def images_have_versions(m):
    for name in PROGRAMS:
        image, _, digest = m.container(name).get("image", "").partition("@")
        if not re.search(r":\d+\.\d+\.\d+-(cpu|cuda)$", image):
            yield f"{name}: the image {image} has no version"
        if m.overlay == "gpu" and not re.fullmatch("sha256:[0-9a-f]{64}", digest):
            yield f"{name}: the image {image} is not named by its digest; a tag can be moved"
    if m.overlay == "gpu" and "-cuda@" not in m.container(WORKER).get("image", ""):
        yield f"{WORKER}: the image is not that with CUDA"


@rule("cpu-dev", "gpu", "monitoring")
def one_namespace(m):
    for one in m.documents:
        if one["kind"] not in CLUSTER_WIDE and one["metadata"].get("namespace") != "nibble":
            yield f"{one['kind']} {one['metadata']['name']}: not in the namespace nibble"


@rule(*CLUSTERS)
def no_service_variables(m):
    # They would grow with the namespace, and a Service named `nibble` would set variables that the programs read.
    for name in PROGRAMS:
        if m.pod(name).get("enableServiceLinks") is not False:
            yield f"{name}: Services of the namespace are in its environment"
