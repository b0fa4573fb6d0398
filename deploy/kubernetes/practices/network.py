"""What may connect to what."""

from practices.manifests import CLUSTERS, COORDINATOR, WORKER, rule


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


@rule("cpu-dev", "gpu", "monitoring")
def peers_of_other_namespaces_are_bound(m):
    """Labels of pods are their makers' to choose; those of a namespace are not."""
    for one in m.of("NetworkPolicy"):
        for direction, key in (("ingress", "from"), ("egress", "to")):
            for allowed in one["spec"].get(direction, []):
                for peer in allowed.get(key, []):
                    if "namespaceSelector" in peer and not peer["namespaceSelector"]:
                        yield f"{one['metadata']['name']}: {direction} of pods of every namespace"


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
