"""How pods start, are watched, stop and move."""

from practices.manifests import CLUSTERS, COORDINATOR, PROGRAMS, WORKER, rule


@rule(*CLUSTERS)
def probes(m):
    for name in PROGRAMS:
        container = m.container(name)
        found = {kind: container.get(f"{kind}Probe") for kind in ("startup", "liveness", "readiness")}
        for kind, probe in found.items():
            if probe is None:
                yield f"{name}: no {kind} probe"
            elif probe.get("httpGet", {}).get("port") != "http":
                yield f"{name}: the {kind} probe is not at the plain HTTP port"
        if not all(found.values()):
            continue
        paths = {kind: probe.get("httpGet", {}).get("path") for kind, probe in found.items()}
        if paths["liveness"] != "/healthz" or paths["liveness"] == paths["readiness"]:
            yield f"{name}: liveness follows readiness"
        if paths["readiness"] != "/readyz":
            yield f"{name}: readiness is not /readyz"
        if paths["startup"] == "/readyz":
            yield f"{name}: a pod that is not ready is restarted at its start"
        startup = found["startup"]
        if startup.get("periodSeconds", 10) * startup.get("failureThreshold", 3) < 1200:
            yield f"{name}: replay of the store, or opening of checkpoints, has less than 20 minutes"
        liveness = found["liveness"]
        if liveness.get("periodSeconds", 10) * liveness.get("failureThreshold", 3) < 30:
            yield f"{name}: killed after less than 30 s without an answer"


@rule(*CLUSTERS)
def stops_after_a_drain(m):
    grace = m.pod(WORKER).get("terminationGracePeriodSeconds", 30)
    hook = m.container(WORKER).get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
    if not any("drain.sh" in word for word in hook):
        yield f"{WORKER}: no drain before it stops"
    back = m.container(WORKER).get("lifecycle", {}).get("postStart", {}).get("exec", {}).get("command", [])
    if not any("return.sh" in word for word in back):
        yield f"{WORKER}: stays drained after its return"
    drain = int(m.env(WORKER).get("NIBBLE_DRAIN_SECONDS") or 600)
    if grace < drain + 30:
        yield f"{WORKER}: killed {grace} s after the stop begins, within the drain of {drain} s"
    if drain < 120:
        yield f"{WORKER}: {drain} s for the checkpoint before it stops"
    calls = int(m.flags(COORDINATOR).get("grace-ms", 5000)) / 1000
    if m.pod(COORDINATOR).get("terminationGracePeriodSeconds", 30) < calls + 30:
        yield f"{COORDINATOR}: killed before its store is closed"


@rule(*CLUSTERS)
def budgets_let_nodes_drain(m):
    for name in PROGRAMS:
        spec = m.get("PodDisruptionBudget", name)["spec"]
        if not spec:
            yield f"{name}: no PodDisruptionBudget"
        elif "minAvailable" in spec or not spec.get("maxUnavailable"):
            yield f"{name}: its budget blocks the drain of a node"
        elif spec.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"{name}: a pod that is not ready blocks the drain of its node"


@rule(*CLUSTERS)
def priorities(m):
    values = {}
    for name in PROGRAMS:
        chosen = m.get("PriorityClass", m.pod(name).get("priorityClassName"))
        if "value" not in chosen:
            yield f"{name}: no priority class"
        values[name] = chosen.get("value", 0)
    if values[COORDINATOR] <= values[WORKER]:
        yield f"{COORDINATOR}: its priority is not above that of the workers"


@rule(*CLUSTERS)
def spread_over_nodes(m):
    keys = {one["topologyKey"] for one in m.pod(WORKER).get("topologySpreadConstraints", [])}
    if "kubernetes.io/hostname" not in keys:
        yield f"{WORKER}: not spread over nodes"


@rule(*CLUSTERS)
def updates_replace_one_after_the_other(m):
    for name in PROGRAMS:
        if m.get("StatefulSet", name)["spec"].get("updateStrategy", {}).get("type") != "RollingUpdate":
            yield f"{name}: an update does not replace its pods"
    if m.get("StatefulSet", WORKER)["spec"].get("podManagementPolicy") != "Parallel":
        yield f"{WORKER}: a worker that does not start holds up the others"
