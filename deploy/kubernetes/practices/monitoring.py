"""What Prometheus and Grafana find."""

import re

import yaml

from practices.manifests import CLUSTERS, PROGRAMS, rule


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
    for one in m.of("ConfigMap"):
        if "grafana_datasource" not in one["metadata"].get("labels", {}):
            continue
        for source in [source for text in one["data"].values() for source in yaml.safe_load(text)["datasources"]]:
            if source.get("uid") != "nibble-prometheus":
                yield f"the dashboards do not name the data source {source.get('uid')}"
            if not re.fullmatch(r"https?://[a-z0-9.-]+(:\d+)?", source.get("url", "")):
                yield f"the data source's address {source.get('url')} is not that of a Service"
    if not m.of("PrometheusRule"):
        yield "no PrometheusRule"
