"""Checks rendered manifests against the practices that Nibble's deployment keeps.

    python3 deploy/kubernetes/lint.py FOLDER [PROGRAM=HELP...]

    FOLDER        cpu-dev.yaml, gpu.yaml and monitoring.yaml, such as deploy/kubernetes/golden
    PROGRAM=HELP  a file with what PROGRAM --help prints: every flag that a manifest gives it must be there

Prints what is wrong and exits with 1. A rule is a function that yields its faults; lint_test.py breaks a manifest for each rule
and expects the rule to find it.
"""

import pathlib
import re
import sys

import yaml

COORDINATOR, WORKER = "nibble-coordinator", "nibble-worker"
PROGRAMS = (COORDINATOR, WORKER)
CLUSTERS = ("cpu-dev", "gpu")
# Secrets that an operator creates (docs/guide/kubernetes.md).
OWN_SECRETS = {"nibble-drain-token"}
CLUSTER_WIDE = {"Namespace", "PriorityClass"}
RULES = []


def rule(*overlays):
    """A rule of these overlays."""

    def add(function):
        RULES.append((function, overlays))
        return function

    return add


class Manifests:
    """The documents of one overlay."""

    def __init__(self, overlay, documents, helps):
        self.overlay, self.documents, self.helps = overlay, documents, helps

    def of(self, kind):
        return [one for one in self.documents if one["kind"] == kind]

    def get(self, kind, name):
        for one in self.of(kind):
            if one["metadata"]["name"] == name:
                return one
        return {"metadata": {"name": name}, "spec": {}}

    def pod(self, name):
        return self.get("StatefulSet", name)["spec"].get("template", {}).get("spec", {})

    def container(self, name):
        return self.pod(name).get("containers", [{}])[0]

    def ports(self, name):
        return {port["name"]: port["containerPort"] for port in self.container(name).get("ports", [])}

    def volume(self, name, mount):
        """The volume or claim mounted at a path."""
        for one in self.container(name).get("volumeMounts", []):
            if one["mountPath"] == mount:
                claims = self.get("StatefulSet", name)["spec"].get("volumeClaimTemplates", [])
                named = [claim["spec"] for claim in claims if claim["metadata"]["name"] == one["name"]]
                return (named + [volume for volume in self.pod(name)["volumes"] if volume["name"] == one["name"]])[0]
        return {}

    def flags(self, name):
        """Flag to value, from the arguments and from the file of --config."""
        flags = {}
        for argument in self.container(name).get("args", []):
            key, _, value = argument.removeprefix("--").partition("=")
            flags[key] = value
        for volume in self.pod(name).get("volumes", []):
            data = self.get("ConfigMap", volume.get("configMap", {}).get("name")).get("data", {})
            for text in data.values() if volume["name"] == "flags" else []:
                flags.update(yaml.safe_load(text))
        return flags

    def env(self, name):
        return {one["name"]: one.get("value") for one in self.container(name).get("env", [])}


# --- One coordinator, and workers with names of their own


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


# --- Security


@rule("cpu-dev")
def authentication_is_off_in_words(m):
    for name in PROGRAMS:
        if "insecure" not in m.flags(name):
            yield f"{name}: without TLS it needs --insecure to start"


@rule("gpu")
def authentication(m):
    for name in PROGRAMS:
        flags = m.flags(name)
        if "insecure" in flags:
            yield f"{name}: --insecure beside TLS"
        for flag in ("tls-cert", "tls-key", "tls-ca"):
            if not flags.get(flag, "").startswith("/etc/nibble-tls/"):
                yield f"{name}: --{flag} is not in the mounted certificate's directory"
    secret = m.volume(COORDINATOR, "/etc/nibble-tls").get("secret", {}).get("secretName")
    made = [one["spec"] for one in m.of("Certificate") if one["spec"]["secretName"] == secret]
    if not made:
        yield f"{COORDINATOR}: no Certificate makes the Secret {secret}"
    elif made[0].get("uris") != ["nibble://coordinator"]:
        yield f"{COORDINATOR}: its certificate does not name nibble://coordinator"
    elif not {"server auth", "client auth"} <= set(made[0].get("usages", [])):
        yield f"{COORDINATOR}: its certificate is not for servers and clients both"
    elif made[0]["privateKey"].get("rotationPolicy") != "Always":
        yield f"{COORDINATOR}: its key is not renewed with the certificate"
    issued = m.volume(WORKER, "/etc/nibble-tls").get("csi", {}).get("volumeAttributes", {})
    if issued.get("csi.cert-manager.io/uri-names") != "nibble://worker/${POD_NAME}":
        yield f"{WORKER}: its certificate does not name nibble://worker/NAME"
    usages = issued.get("csi.cert-manager.io/key-usages", "").split(",")
    if not {"server auth", "client auth"} <= set(usages):
        yield f"{WORKER}: its certificate is not for servers and clients both"
    if issued.get("csi.cert-manager.io/issuer-name") not in [one["metadata"]["name"] for one in m.of("Issuer")]:
        yield f"{WORKER}: there is no Issuer of its certificate"
    # The file must be the coordinator's alone, which a mounted Secret cannot be.
    if not m.flags(COORDINATOR).get("bootstrap-token-file", "").startswith("/var/lib/nibble/"):
        yield f"{COORDINATOR}: the first operator's token is not on its volume"


@rule(*CLUSTERS)
def secrets_are_not_in_files(m):
    for one in m.of("Secret"):
        yield f"{one['metadata']['name']}: a Secret in the manifests"
    made = {one["spec"]["secretName"] for one in m.of("Certificate")} | OWN_SECRETS
    for name in PROGRAMS:
        for volume in m.pod(name).get("volumes", []):
            secret = volume.get("secret")
            if secret and secret["secretName"] not in made:
                yield f"{name}: nobody makes the Secret {secret['secretName']}"
            if secret and secret.get("defaultMode", 0o644) & 0o007:
                yield f"{name}: the Secret {secret['secretName']} is readable by everybody"
        for one in m.container(name).get("env", []):
            if "secretKeyRef" in one.get("valueFrom", {}):
                yield f"{name}: the secret {one['name']} is in the environment"


@rule(*CLUSTERS)
def accounts_without_rights(m):
    for kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"):
        for one in m.of(kind):
            yield f"{one['metadata']['name']}: a {kind}; no program calls the Kubernetes API"
    for name in PROGRAMS:
        if m.get("ServiceAccount", name).get("automountServiceAccountToken") is not False:
            yield f"{name}: its ServiceAccount mounts a token"
        if m.pod(name).get("automountServiceAccountToken") is not False:
            yield f"{name}: the pod mounts a token"
        if m.pod(name).get("serviceAccountName") != name:
            yield f"{name}: its account is not its own"


@rule(*CLUSTERS)
def security_contexts(m):
    for name in PROGRAMS:
        pod = m.pod(name).get("securityContext", {})
        if not pod.get("runAsNonRoot") or not pod.get("runAsUser"):
            yield f"{name}: may run as root"
        if not pod.get("fsGroup"):
            yield f"{name}: no fsGroup; it cannot write its volume"
        if pod.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{name}: the seccomp profile is not RuntimeDefault"
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if m.pod(name).get(key):
                yield f"{name}: {key}"
        for one in m.pod(name).get("containers", []) + m.pod(name).get("initContainers", []):
            context = one.get("securityContext", {})
            if context.get("readOnlyRootFilesystem") is not True:
                yield f"{name}: the root file system is writable"
            if context.get("allowPrivilegeEscalation") is not False:
                yield f"{name}: privileges can grow"
            if context.get("capabilities") != {"drop": ["ALL"]}:
                yield f"{name}: has capabilities"
            if context.get("privileged"):
                yield f"{name}: privileged"
        for volume in m.pod(name).get("volumes", []):
            if "hostPath" in volume:
                yield f"{name}: mounts a path of the node"
    for one in m.of("Namespace"):
        if one["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce") != "restricted":
            yield f"{one['metadata']['name']}: the namespace does not enforce the restricted standard"


# --- Network


def peers_of(policy, direction):
    """Names of the programs that the rules of a policy select, each with its ports."""
    key = "from" if direction == "ingress" else "to"
    for one in policy["spec"].get(direction, []):
        for peer in one.get(key, []):
            name = peer.get("podSelector", {}).get("matchLabels", {}).get("app.kubernetes.io/name")
            for port in one.get("ports", []):
                yield name, port


@rule(*CLUSTERS)
def default_deny(m):
    for one in m.of("NetworkPolicy"):
        spec = one["spec"]
        if spec["podSelector"] == {} and set(spec["policyTypes"]) == {"Ingress", "Egress"}:
            if "ingress" not in spec and "egress" not in spec:
                return
    yield "no NetworkPolicy refuses everything first"


@rule("cpu-dev", "gpu", "monitoring")
def policies_name_peers_and_ports(m):
    for one in m.of("NetworkPolicy"):
        for direction, key in (("ingress", "from"), ("egress", "to")):
            for allowed in one["spec"].get(direction, []):
                if not allowed.get(key):
                    yield f"{one['metadata']['name']}: {direction} from or to everybody"
                if not allowed.get("ports"):
                    yield f"{one['metadata']['name']}: {direction} at every port"


@rule(*CLUSTERS)
def needed_connections(m):
    def allows(policy, direction, peer, wanted):
        for name, port in peers_of(m.get("NetworkPolicy", policy), direction):
            low, high = port["port"], port.get("endPort", port["port"])
            if name == peer and (low == wanted or isinstance(low, int) and isinstance(wanted, int) and low <= wanted <= high):
                return True
        return False

    wanted = [(COORDINATOR, "ingress", WORKER, "grpc"), (WORKER, "egress", COORDINATOR, "grpc")]
    wanted += [(COORDINATOR, "egress", WORKER, "peers"), (WORKER, "ingress", COORDINATOR, "peers")]
    # Peers, Gloo and NCCL: ports that the system chooses.
    for port in (1024, 7710, 32768, 60999, 65535):
        wanted += [(WORKER, "ingress", WORKER, port), (WORKER, "egress", WORKER, port)]
    for one in wanted:
        if not allows(*one):
            yield f"{one[0]}: {one[1]} of {one[2]} at port {one[3]} is refused"
    if not any({"protocol": "UDP", "port": 53} in rule.get("ports", []) and one["spec"]["podSelector"] == {}
               for one in m.of("NetworkPolicy") for rule in one["spec"].get("egress", [])):
        yield "names cannot be resolved: no egress to port 53"


# --- Life of a pod


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


# --- Resources and configuration


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


@rule(*CLUSTERS)
def shared_memory(m):
    directory = m.volume(WORKER, "/dev/shm").get("emptyDir", {})
    if directory.get("medium") != "Memory" or not directory.get("sizeLimit"):
        yield f"{WORKER}: /dev/shm is not memory with a limit"


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
        image = m.container(name).get("image", "")
        if not re.search(r":\d+\.\d+\.\d+-(cpu|cuda)$", image):
            yield f"{name}: the image {image} has no version"
    if m.overlay == "gpu" and not m.container(WORKER).get("image", "").endswith("-cuda"):
        yield f"{WORKER}: the image is not that with CUDA"


@rule("cpu-dev", "gpu", "monitoring")
def one_namespace(m):
    for one in m.documents:
        if one["kind"] not in CLUSTER_WIDE and one["metadata"].get("namespace") != "nibble":
            yield f"{one['kind']} {one['metadata']['name']}: not in the namespace nibble"


# --- Monitoring


@rule(*CLUSTERS)
def scrape_annotations(m):
    for name in PROGRAMS:
        template = m.get("StatefulSet", name)["spec"].get("template", {})
        notes = template.get("metadata", {}).get("annotations", {})
        wanted = {"scrape": "true", "port": str(m.ports(name).get("http")), "path": "/metrics"}
        for key, value in wanted.items():
            if notes.get(f"prometheus.io/{key}") != value:
                yield f"{name}: the annotation prometheus.io/{key} is not {value}"


@rule("monitoring")
def service_monitors(m):
    for name in PROGRAMS:
        spec = m.get("ServiceMonitor", name)["spec"]
        if spec.get("selector", {}).get("matchLabels") != {"app.kubernetes.io/name": name}:
            yield f"{name}: no ServiceMonitor selects its Service"
        for one in spec.get("endpoints", [{}]):
            if one.get("port") != "http" or not one.get("honorLabels"):
                yield f"{name}: its ServiceMonitor needs the port http and honorLabels"
            labels = {label["targetLabel"] for label in one.get("relabelings", [])}
            if not {"cluster", "role"} <= labels:
                yield f"{name}: the dashboards' labels cluster and role are missing"
    ports = [port["port"] for one in m.of("NetworkPolicy") for allowed in one["spec"]["ingress"] for port in allowed.get("ports", [])]
    if "http" not in ports:
        yield "Prometheus may not reach the port http"


@rule("monitoring")
def dashboards_and_rules(m):
    labels = [one["metadata"].get("labels", {}) for one in m.of("ConfigMap")]
    for label in ("grafana_dashboard", "grafana_datasource"):
        if not any(label in one for one in labels):
            yield f"no ConfigMap has the label {label}"
    if not m.of("PrometheusRule"):
        yield "no PrometheusRule"


def faults_of(overlay, documents, helps=None):
    """Pairs of a rule's name and a fault."""
    manifests = Manifests(overlay, documents, helps or {})
    return [(check.__name__, fault) for check, overlays in RULES if overlay in overlays for fault in check(manifests)]


def main():
    folder, rest = pathlib.Path(sys.argv[1]), sys.argv[2:]
    pairs = [one.split("=", 1) for one in rest]
    helps = {program: pathlib.Path(path).read_text() for program, path in pairs}
    found = 0
    for overlay in (*CLUSTERS, "monitoring"):
        documents = list(yaml.safe_load_all((folder / f"{overlay}.yaml").read_text()))
        for name, fault in faults_of(overlay, documents, helps):
            found += 1
            print(f"{overlay}: {fault} ({name})")
    print(f"{len(RULES)} rules, {found} faults")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
