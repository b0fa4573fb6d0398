"""The documents of an overlay as the rules read them, and the list of the rules.

A rule is a function that yields its faults; lint_test.py breaks a manifest for each rule and expects the rule to find it.
"""

import yaml

COORDINATOR, WORKER = "nibble-coordinator", "nibble-worker"
PROGRAMS = (COORDINATOR, WORKER)
CLUSTERS = ("cpu-dev", "gpu")
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
