"""Who may call whom, with which proof, and what a pod may do to its node."""

from practices.manifests import CLUSTERS, COORDINATOR, PROGRAMS, WORKER, rule


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
    people = [one["spec"] for one in m.of("Certificate") if one["spec"].get("uris", [""])[0].startswith("nibble://client/")]
    if not any("client auth" in one.get("usages", []) for one in people):
        yield "no Certificate for people: nobody outside can connect"
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


@rule("gpu")
def hooks_authenticate(m):
    flags = (m.env(WORKER).get("NIBBLE_CLIENT_FLAGS") or "").split()
    for flag in ("--tls-cert", "--tls-key", "--tls-ca"):
        path = next((word.partition("=")[2] for word in flags if word.startswith(flag + "=")), "")
        if not m.volume(WORKER, path.rpartition("/")[0]):
            yield f"{WORKER}: the hooks have no {flag} in a mounted directory"


@rule(*CLUSTERS)
def no_token_where_ranks_run(m):
    """Whoever gets out of a rank finds the worker's certificate, and no token of people."""
    pod = m.pod(WORKER)
    for volume in pod.get("volumes", []):
        sources = [volume, *volume.get("projected", {}).get("sources", [])]
        for kind in ("secret", "serviceAccountToken"):
            if any(kind in one for one in sources):
                yield f"{WORKER}: the volume {volume['name']} is a {kind}"
    for container in pod.get("containers", []) + pod.get("initContainers", []):
        for text in [*container.get("args", []), *container.get("command", []), *(str(one) for one in container.get("env", []))]:
            if "token" in text.lower() or "secretKeyRef" in text:
                yield f"{WORKER}: a token in {text}"
        if any("secretRef" in one for one in container.get("envFrom", [])):
            yield f"{WORKER}: a Secret in the environment"


@rule("gpu")
def audited(m):
    path = m.flags(COORDINATOR).get("audit-log", "")
    if not path.startswith("/var/lib/nibble/"):
        yield f"{COORDINATOR}: no audit log on its volume"


@rule(*CLUSTERS)
def roots(m):
    """Jobs reach the mounted data only, not the daemon's shards, keys and tokens."""
    mounts = {one["mountPath"] for one in m.container(WORKER).get("volumeMounts", [])}
    own = ("/var/lib/nibble", "/etc/")
    given = m.flags(WORKER).get("root") or []
    if not given:
        yield f"{WORKER}: no --root; a job may name any path of the pod"
    for root in given:
        if root not in mounts or any(path.startswith(root) or root.startswith(path) for path in own):
            yield f"{WORKER}: --root {root} is not a volume of data"


@rule(*CLUSTERS)
def secrets_are_not_in_files(m):
    for one in m.of("Secret"):
        yield f"{one['metadata']['name']}: a Secret in the manifests"
    made = {one["spec"]["secretName"] for one in m.of("Certificate")}
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
