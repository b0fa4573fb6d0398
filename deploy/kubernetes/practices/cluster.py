"""One coordinator whose store has one writer, and workers with names of their own."""

import re

from practices.manifests import CLUSTERS, COORDINATOR, PROGRAMS, WORKER, rule


@rule(*CLUSTERS)
def one_coordinator(m):
    if m.get("StatefulSet", COORDINATOR)["spec"].get("replicas") != 1:
        yield f"{COORDINATOR}: replicas is not 1; a store has one writer"
    if m.volume(COORDINATOR, "/var/lib/nibble").get("accessModes") != ["ReadWriteOncePod"]:
        yield f"{COORDINATOR}: the store's volume is not ReadWriteOncePod"


@rule(*CLUSTERS)
def durable_volumes(m):
    for name in PROGRAMS:
        if "accessModes" not in m.volume(name, "/var/lib/nibble"):
            yield f"{name}: /var/lib/nibble is not a claimed volume"
        for flag in ("store", "data"):
            path = m.flags(name).get(flag, "/var/lib/nibble/")
            if not path.startswith("/var/lib/nibble/"):
                yield f"{name}: --{flag} {path} is not below the volume"


@rule("gpu")
def backups(m):
    directory = m.flags(COORDINATOR).get("backup-directory", "")
    claim = m.volume(COORDINATOR, directory.rpartition("/")[0]).get("persistentVolumeClaim", {}).get("claimName")
    if "accessModes" not in m.get("PersistentVolumeClaim", claim)["spec"]:
        yield f"{COORDINATOR}: no backups on a volume of their own"


@rule(*CLUSTERS)
def headless_services(m):
    for name in PROGRAMS:
        service = m.get("Service", name)["spec"]
        if service.get("clusterIP") != "None":
            yield f"{name}: its Service is not headless"
        if m.get("StatefulSet", name)["spec"].get("serviceName") != name:
            yield f"{name}: serviceName is not {name}"
        labels = m.get("StatefulSet", name)["spec"].get("template", {}).get("metadata", {}).get("labels", {})
        if not service.get("selector") or not service["selector"].items() <= labels.items():
            yield f"{name}: its Service selects no pod"
        for port in service.get("ports", []):
            if m.ports(name).get(port["targetPort"]) != port["port"]:
                yield f"{name}: port {port['name']} of its Service is not that of the pod"
    if not m.get("Service", WORKER)["spec"].get("publishNotReadyAddresses"):
        yield f"{WORKER}: workers that are not ready yet have no name for each other"


@rule(*CLUSTERS)
def flags_exist(m):
    for name in PROGRAMS:
        known = set(re.findall(r"--([a-z][a-z-]+)", m.helps.get(name, "")))
        for flag in m.flags(name) if name in m.helps else []:
            if flag not in known:
                yield f"{name}: no flag --{flag}"
    listens = {COORDINATOR: ("listen", "grpc", "http", "http"), WORKER: ("address", "peers", "http", "http")}
    for name, (own, own_port, http, http_port) in listens.items():
        for flag, port in ((own, own_port), (http, http_port)):
            if not m.flags(name).get(flag, "").endswith(f":{m.ports(name).get(port)}"):
                yield f"{name}: --{flag} is not at port {port}"
