"""Breaks a correct manifest in one place at a time: lint.py's rule must find each fault.

    python3 deploy/kubernetes/lint_test.py FOLDER     FOLDER: the golden files
"""

import copy
import pathlib
import re
import sys

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import lint  # noqa: E402
from practices.manifests import CLUSTERS, COORDINATOR, RULES, WORKER, Manifests  # noqa: E402

HELP = {COORDINATOR: "--config --cluster --store --listen --http --copies --grace-ms --insecure --tls-cert --tls-key --tls-ca "
        "--bootstrap-token-file --audit-log --backup-directory"}


class Broken(Manifests):
    """Documents to be changed; the methods return parts of them, not copies."""

    def set_spec(self, name):
        return self.get("StatefulSet", name)["spec"]

    def drop(self, kind, name):
        self.documents.remove(self.get(kind, name))

    def rename(self, name, mount):
        next(one for one in self.container(name)["volumeMounts"] if one["mountPath"] == mount)["mountPath"] = "/elsewhere"

    def argument(self, name, old, new):
        arguments = self.container(name)["args"]
        arguments[:] = [one.replace(old, new) for one in arguments if new or not one.startswith(old)]

    def policy(self, name):
        return self.get("NetworkPolicy", name)["spec"]


def config(m, name, text):
    for one in m.of("ConfigMap"):
        if one["metadata"]["name"].startswith(name):
            one["data"] = {key: value + text for key, value in one["data"].items()}


def datasource(m, pattern, text):
    data = m.get("ConfigMap", "nibble-datasource")["data"]
    data["nibble.yaml"] = re.sub(pattern, text, data["nibble.yaml"])


def issued(m):
    return m.volume(WORKER, "/etc/nibble-tls")["csi"]["volumeAttributes"]


# Rule, overlay, what is broken.
FAULTS = [
    ("one_coordinator", "gpu", lambda m: m.set_spec(COORDINATOR).update(replicas=2)),
    ("one_coordinator", "gpu", lambda m: m.volume(COORDINATOR, "/var/lib/nibble").update(accessModes=["ReadWriteOnce"])),
    ("durable_volumes", "gpu", lambda m: m.set_spec(WORKER).update(volumeClaimTemplates=[])
     or m.pod(WORKER)["volumes"].append({"name": "shards", "emptyDir": {}})),
    ("durable_volumes", "gpu", lambda m: config(m, COORDINATOR, "store: /tmp/store\n")),
    ("headless_services", "gpu", lambda m: m.get("Service", WORKER)["spec"].pop("clusterIP")),
    ("headless_services", "gpu", lambda m: m.set_spec(WORKER).update(serviceName="other")),
    ("headless_services", "gpu", lambda m: m.get("Service", WORKER)["spec"].update(selector={"app": "other"})),
    ("headless_services", "gpu", lambda m: m.get("Service", WORKER)["spec"]["ports"][0].update(port=1)),
    ("headless_services", "gpu", lambda m: m.get("Service", WORKER)["spec"].pop("publishNotReadyAddresses")),
    ("flags_exist", "cpu-dev", lambda m: config(m, COORDINATOR, "no-such-flag: 1\n")),
    ("flags_exist", "cpu-dev", lambda m: config(m, COORDINATOR, "listen: 0.0.0.0:80\n")),
    ("flags_exist", "cpu-dev", lambda m: m.argument(WORKER, ":7710", ":80")),
    ("authentication_is_off_in_words", "cpu-dev", lambda m: m.argument(WORKER, "--insecure", "")),
    ("authentication", "gpu", lambda m: m.argument(WORKER, "--tls-ca", "")),
    ("authentication", "gpu", lambda m: m.container(WORKER)["args"].append("--insecure")),
    ("authentication", "gpu", lambda m: m.argument(COORDINATOR, "--bootstrap-token-file", "")),
    ("authentication", "gpu", lambda m: m.drop("Certificate", COORDINATOR)),
    ("authentication", "gpu", lambda m: m.get("Certificate", COORDINATOR)["spec"].update(usages=["server auth"])),
    ("authentication", "gpu", lambda m: m.get("Certificate", COORDINATOR)["spec"]["privateKey"].pop("rotationPolicy")),
    ("authentication", "gpu", lambda m: m.get("Certificate", COORDINATOR)["spec"].update(uris=["nibble://other"])),
    ("authentication", "gpu", lambda m: issued(m).update({"csi.cert-manager.io/uri-names": "nibble://worker/one"})),
    ("authentication", "gpu", lambda m: issued(m).update({"csi.cert-manager.io/key-usages": "server auth"})),
    ("authentication", "gpu", lambda m: m.drop("Issuer", "nibble")),
    ("secrets_are_not_in_files", "gpu", lambda m: m.documents.append({"kind": "Secret", "metadata": {"name": "s", "namespace": "nibble"}})),
    ("secrets_are_not_in_files", "gpu", lambda m: m.volume(COORDINATOR, "/etc/nibble-tls")["secret"].update(secretName="other")),
    ("secrets_are_not_in_files", "gpu", lambda m: m.volume(COORDINATOR, "/etc/nibble-tls")["secret"].pop("defaultMode")),
    ("no_token_where_ranks_run", "gpu", lambda m: m.pod(WORKER)["volumes"].append({"name": "token", "secret": {"secretName": "drain"}})),
    ("no_token_where_ranks_run", "gpu", lambda m: m.pod(WORKER)["volumes"].append(
        {"name": "token", "projected": {"sources": [{"secret": {"name": "drain"}}]}})),
    ("no_token_where_ranks_run", "cpu-dev", lambda m: m.pod(WORKER)["volumes"].append(
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}})),
    ("no_token_where_ranks_run", "gpu", lambda m: m.container(WORKER)["env"].append({"name": "NIBBLE_TOKEN", "value": "nibble_x"})),
    ("no_token_where_ranks_run", "gpu", lambda m: m.container(WORKER)["env"].append(
        {"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}})),
    ("no_token_where_ranks_run", "gpu", lambda m: m.container(WORKER)["args"].append("--token-file=/models/operator")),
    ("no_token_where_ranks_run", "gpu", lambda m: m.container(WORKER).update(envFrom=[{"secretRef": {"name": "s"}}])),
    ("secrets_are_not_in_files", "gpu", lambda m: m.container(WORKER)["env"].append(
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}})),
    ("accounts_without_rights", "gpu", lambda m: m.documents.append({"kind": "RoleBinding", "metadata": {"name": "r", "namespace": "nibble"}})),
    ("accounts_without_rights", "gpu", lambda m: m.get("ServiceAccount", WORKER).pop("automountServiceAccountToken")),
    ("accounts_without_rights", "gpu", lambda m: m.pod(WORKER).pop("automountServiceAccountToken")),
    ("accounts_without_rights", "gpu", lambda m: m.pod(WORKER).pop("serviceAccountName")),
    ("security_contexts", "gpu", lambda m: m.pod(WORKER)["securityContext"].pop("runAsNonRoot")),
    ("security_contexts", "gpu", lambda m: m.pod(WORKER)["securityContext"].pop("fsGroup")),
    ("security_contexts", "gpu", lambda m: m.pod(WORKER)["securityContext"].pop("seccompProfile")),
    ("security_contexts", "gpu", lambda m: m.pod(WORKER).update(hostNetwork=True)),
    ("security_contexts", "gpu", lambda m: m.container(WORKER)["securityContext"].pop("readOnlyRootFilesystem")),
    ("security_contexts", "gpu", lambda m: m.container(WORKER)["securityContext"].pop("allowPrivilegeEscalation")),
    ("security_contexts", "gpu", lambda m: m.container(WORKER)["securityContext"].update(capabilities={"add": ["SYS_ADMIN"]})),
    ("security_contexts", "gpu", lambda m: m.container(WORKER)["securityContext"].update(privileged=True)),
    ("security_contexts", "gpu", lambda m: m.pod(WORKER)["volumes"].append({"name": "h", "hostPath": {"path": "/"}})),
    ("security_contexts", "gpu", lambda m: m.get("Namespace", "nibble")["metadata"].pop("labels")),
    ("default_deny", "gpu", lambda m: m.drop("NetworkPolicy", "default-deny")),
    ("default_deny", "gpu", lambda m: m.policy("default-deny").update(policyTypes=["Ingress"])),
    ("policies_name_peers_and_ports", "gpu", lambda m: m.policy(WORKER)["ingress"][0].pop("from")),
    ("policies_name_peers_and_ports", "monitoring", lambda m: m.policy("nibble-scrape")["ingress"][0].pop("ports")),
    ("needed_connections", "gpu", lambda m: m.policy(WORKER)["ingress"][1]["ports"][0].pop("endPort")),
    ("needed_connections", "gpu", lambda m: m.policy(COORDINATOR).pop("egress")),
    ("needed_connections", "gpu", lambda m: m.drop("NetworkPolicy", "dns")),
    ("peers_of_other_namespaces_are_bound", "gpu", lambda m: m.policy(COORDINATOR)["ingress"][0]["from"][1].update(namespaceSelector={})),
    ("probes", "gpu", lambda m: m.container(COORDINATOR).pop("startupProbe")),
    ("probes", "gpu", lambda m: m.container(COORDINATOR)["startupProbe"].update(failureThreshold=3)),
    ("probes", "gpu", lambda m: m.container(COORDINATOR)["startupProbe"]["httpGet"].update(path="/readyz")),
    ("probes", "gpu", lambda m: m.container(WORKER)["livenessProbe"]["httpGet"].update(path="/readyz")),
    ("probes", "gpu", lambda m: m.container(WORKER)["livenessProbe"].update(failureThreshold=1)),
    ("probes", "gpu", lambda m: m.container(WORKER)["readinessProbe"]["httpGet"].update(path="/healthz")),
    ("probes", "gpu", lambda m: m.container(WORKER)["readinessProbe"]["httpGet"].update(port="peers")),
    ("stops_after_a_drain", "gpu", lambda m: m.container(WORKER)["lifecycle"].pop("preStop")),
    ("stops_after_a_drain", "gpu", lambda m: m.container(WORKER)["lifecycle"].pop("postStart")),
    ("stops_after_a_drain", "gpu", lambda m: m.pod(WORKER).update(terminationGracePeriodSeconds=30)),
    ("stops_after_a_drain", "gpu", lambda m: [one.update(value="5") for one in m.container(WORKER)["env"] if "DRAIN" in one["name"]]),
    ("stops_after_a_drain", "gpu", lambda m: m.pod(COORDINATOR).pop("terminationGracePeriodSeconds")),
    ("budgets_let_nodes_drain", "gpu", lambda m: m.drop("PodDisruptionBudget", WORKER)),
    ("budgets_let_nodes_drain", "gpu", lambda m: m.get("PodDisruptionBudget", COORDINATOR)["spec"].update(minAvailable=1)),
    ("budgets_let_nodes_drain", "gpu", lambda m: m.get("PodDisruptionBudget", WORKER)["spec"].update(maxUnavailable=0)),
    ("priorities", "gpu", lambda m: m.pod(WORKER).pop("priorityClassName")),
    ("priorities", "gpu", lambda m: m.get("PriorityClass", WORKER).update(value=2000000)),
    ("spread_over_nodes", "gpu", lambda m: m.pod(WORKER).pop("topologySpreadConstraints")),
    ("resources", "gpu", lambda m: m.container(WORKER)["resources"]["limits"].pop("memory")),
    ("a_slot_for_each_card", "gpu", lambda m: m.container(WORKER)["resources"]["requests"].update({"nvidia.com/gpu": "4"})),
    ("a_slot_for_each_card", "gpu", lambda m: m.argument(WORKER, "--device=cuda", "--device=cpu")),
    ("a_slot_for_each_card", "gpu", lambda m: m.container(WORKER)["args"].append("--slots=1")),
    ("shared_memory", "gpu", lambda m: m.volume(WORKER, "/dev/shm")["emptyDir"].pop("medium")),
    ("shared_memory", "gpu", lambda m: m.rename(WORKER, "/dev/shm")),
    ("temporary_files", "gpu", lambda m: m.volume(COORDINATOR, "/tmp")["emptyDir"].pop("sizeLimit")),
    ("configuration_replaces_pods", "gpu", lambda m: m.volume(WORKER, "/etc/nibble")["configMap"].update(name=WORKER)),
    ("configuration_replaces_pods", "gpu", lambda m: m.volume(WORKER, "/etc/nibble")["configMap"].update(name="other-0123456789")),
    ("images_have_versions", "gpu", lambda m: m.container(WORKER).update(image="nibble:latest")),
    ("images_have_versions", "gpu", lambda m: m.container(WORKER).update(image="nibble:0.1.0-cuda")),
    ("images_have_versions", "gpu", lambda m: m.container(WORKER).update(image="nibble:0.1.0-cpu@sha256:" + 64 * "0")),
    ("images_have_versions", "gpu", lambda m: m.container(WORKER).update(image="nibble:0.1.0-cuda@sha256:0")),
    ("one_namespace", "gpu", lambda m: m.get("Certificate", COORDINATOR)["metadata"].pop("namespace")),
    ("scrape_annotations", "gpu", lambda m: m.set_spec(WORKER)["template"]["metadata"]["annotations"].update({"prometheus.io/port": "80"})),
    ("service_monitors", "monitoring", lambda m: m.get("ServiceMonitor", WORKER)["spec"].pop("selector")),
    ("service_monitors", "monitoring", lambda m: m.get("ServiceMonitor", WORKER)["spec"]["endpoints"][0].pop("honorLabels")),
    ("service_monitors", "monitoring", lambda m: m.get("ServiceMonitor", WORKER)["spec"]["endpoints"][0].pop("relabelings")),
    ("service_monitors", "monitoring", lambda m: m.policy("nibble-scrape")["ingress"][0]["ports"][0].update(port="grpc")),
    ("dashboards_and_rules", "monitoring", lambda m: m.drop("PrometheusRule", "nibble")),
    ("dashboards_and_rules", "monitoring", lambda m: m.drop("ConfigMap", "nibble-datasource")),
    ("backups", "gpu", lambda m: m.argument(COORDINATOR, "--backup-directory", "")),
    ("backups", "gpu", lambda m: m.argument(COORDINATOR, "/var/backups/nibble/store", "/var/lib/nibble/backups")),
    ("authentication", "gpu", lambda m: m.drop("Certificate", "nibble-operator")),
    ("hooks_authenticate", "gpu", lambda m: m.rename(WORKER, "/etc/nibble-tls")),
    ("hooks_authenticate", "gpu", lambda m: [one.update(value="") for one in m.container(WORKER)["env"] if one["name"] == "NIBBLE_CLIENT_FLAGS"]),
    ("audited", "gpu", lambda m: m.argument(COORDINATOR, "--audit-log", "")),
    ("roots", "gpu", lambda m: config(m, WORKER, "root: []\n")),
    ("roots", "gpu", lambda m: config(m, WORKER, "root: [/var/lib/nibble]\n")),
    ("roots", "gpu", lambda m: config(m, WORKER, "root: [/]\n")),
    ("budgets_let_nodes_drain", "gpu", lambda m: m.get("PodDisruptionBudget", COORDINATOR)["spec"].pop("unhealthyPodEvictionPolicy")),
    ("updates_replace_one_after_the_other", "gpu", lambda m: m.set_spec(WORKER).update(updateStrategy={"type": "OnDelete"})),
    ("updates_replace_one_after_the_other", "gpu", lambda m: m.set_spec(WORKER).pop("podManagementPolicy")),
    ("shared_memory", "gpu", lambda m: m.volume(WORKER, "/dev/shm")["emptyDir"].update(sizeLimit="512Gi")),
    ("no_service_variables", "gpu", lambda m: m.pod(COORDINATOR).pop("enableServiceLinks")),
    ("dashboards_and_rules", "monitoring", lambda m: datasource(m, "url: .*", "url: $ADDRESS")),
    ("dashboards_and_rules", "monitoring", lambda m: datasource(m, "uid: .*", "uid: other")),
]


def main():
    folder = pathlib.Path(sys.argv[1])
    overlays = (*CLUSTERS, "monitoring")
    texts = {one: list(yaml.safe_load_all((folder / f"{one}.yaml").read_text())) for one in overlays}
    missed = 0
    for overlay in overlays:
        for found in lint.faults_of(overlay, texts[overlay], HELP):
            missed += 1
            print(f"{overlay}, which is correct: {found}")
    for number, (rule, overlay, breaks) in enumerate(FAULTS):
        documents = copy.deepcopy(texts[overlay])
        breaks(Broken(overlay, documents, {}))
        found = [name for name, _ in lint.faults_of(overlay, documents, HELP)]
        if documents == texts[overlay]:
            missed += 1
            print(f"fault {number} of {rule}: changes nothing")
        if rule not in found:
            missed += 1
            print(f"fault {number}: {rule} does not find it; found by {found}")
    for function, _ in RULES:
        if function.__name__ not in {rule for rule, _, _ in FAULTS}:
            missed += 1
            print(f"no fault tests {function.__name__}")
    print(f"{len(FAULTS)} faults, {missed} missed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
