"""Checks the dashboards, rules and runbook against each other.

    python3 deploy/lint.py ROOT     ROOT: the repository; prints what is wrong and exits with 1

Every panel has a title, description, unit and, for each query, a legend; those that have data only
where there are cards say so. Queries go to the data
source of the variable, name no cluster, job or worker, and read only metrics that
docs/reference/metrics.md or a recording rule has. Every alert has a severity, a section of the
runbook, and unit tests in which it fires and is quiet.
"""

import json
import pathlib
import re
import sys

faults = []


def fault(where, what):
    faults.append(f"{where}: {what}")


def known_metrics(root):
    """Names that queries may read."""
    names = {"up"}
    reference = (root / "docs/reference/metrics.md").read_text()
    for name, kind in re.findall(r"^\| `(nibble_\w+)` \| (\w+)", reference, re.M):
        names.add(name)
        if kind == "histogram":
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    recording = (root / "deploy/prometheus/rules/recording.yml").read_text()
    return names | set(re.findall(r"- record: (\S+)", recording))


def check_expr(where, expr, known, dashboard):
    # The longer alternative is a recorded name, such as job:nibble_job_loss:mean30m.
    for name in re.findall(r"\b(?:\w+:nibble_\w+:\w+|(?<!:)nibble_\w+)", expr):
        if name not in known:
            fault(where, f"no program exports {name}")
    matcher = r"\b(cluster|job|worker|instance)\s*(?:=~?|!=|!~)\s*\"([^\"]*)\""
    for label, value in re.findall(matcher, expr):
        if not value.startswith("$"):
            fault(where, f'{label}="{value}" is not a variable')
    if dashboard and "$cluster" not in expr:
        fault(where, "does not select the variable cluster")
    if re.search(r"\b(rate|increase)\([^\[]*\[\d+s\]", expr):
        fault(where, "a window in seconds may be shorter than the scrape interval")


def check_source(where, source):
    if source != {"type": "prometheus", "uid": "${datasource}"}:
        fault(where, f"the data source is {source} rather than the variable")


def check_dashboard(path, known, uids):
    board = json.loads(path.read_text())
    where = path.name
    if uids.setdefault(board["uid"], where) != where:
        fault(where, f"uid {board['uid']} is also that of {uids[board['uid']]}")
    if board["schemaVersion"] < 38:
        fault(where, f"schemaVersion {board['schemaVersion']} is older than Grafana 10's, 38")
    variables = {one["name"]: one for one in board["templating"]["list"]}
    for name in ("datasource", "cluster"):
        if name not in variables:
            fault(where, f"no variable {name}")
    for name, one in variables.items():
        if not one["description"] or not one["label"]:
            fault(f"{where}: variable {name}", "no label or no description")
        if one["type"] == "query":
            check_source(f"{where}: variable {name}", one["datasource"])
            check_expr(f"{where}: variable {name}", one["query"]["query"], known, name != "cluster")
    for one in board["annotations"]["list"]:
        check_source(f"{where}: {one['name']}", one["datasource"])
        check_expr(f"{where}: {one['name']}", one["expr"], known, True)
    cells, ids = set(), set()
    for one in board["panels"]:
        place = f"{where}: {one.get('title') or one['id']}"
        if one["id"] in ids:
            fault(place, "its id is another panel's")
        ids.add(one["id"])
        grid = one["gridPos"]
        columns = range(grid["x"], grid["x"] + grid["w"])
        its = {(x, grid["y"] + y) for x in columns for y in range(grid["h"])}
        if its & cells or grid["x"] + grid["w"] > 24:
            fault(place, "it overlaps another panel, or the edge")
        cells |= its
        if not one.get("title"):
            fault(place, "no title")
        if one["type"] == "row":
            continue
        if not one.get("description"):
            fault(place, "no description")
        reads_cards = any("nibble_card_" in target["expr"] for target in one["targets"])
        if reads_cards != one.get("description", "").endswith("Needs an NVIDIA card."):
            fault(place, "reads metrics of cards and does not say so at its end, or the reverse")
        if not one["fieldConfig"]["defaults"].get("unit"):
            fault(place, "no unit")
        if not one["targets"]:
            fault(place, "no query")
        check_source(place, one["datasource"])
        for target in one["targets"]:
            check_source(place, target["datasource"])
            if not target.get("legendFormat") or target["legendFormat"] == "__auto":
                fault(place, f"no legend for {target['expr']}")
            check_expr(place, target["expr"], known, True)
            used = set(re.findall(r"\$(\w+)", target["expr"]))
            for name in used - set(variables) - {"__rate_interval", "__range", "__interval"}:
                fault(place, f"no variable {name}")


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def check_alerts(root, known):
    text = (root / "deploy/prometheus/rules/alerts.yml").read_text()
    runbook = root / "docs/guide/alerts.md"
    sections = set(re.findall(r"^## (.+)$", runbook.read_text(), re.M))
    tests = (root / "deploy/prometheus/tests/alerts.yml").read_text()
    names = []
    for block in text.split("- alert: ")[1:]:
        name = block.split("\n", 1)[0].strip()
        names.append(name)
        expr = re.search(r"expr:(.*?)\n        (?:for|labels):", block, re.S)
        if not expr:
            fault(name, "no expression")
            continue
        check_expr(name, expr[1], known, False)
        if not re.search(r"severity: (page|warning|info)\b", block):
            fault(name, "severity is not page, warning or info")
        url = f"runbook_url: '{{{{ $externalLabels.nibble_docs }}}}docs/guide/alerts.md#{anchor(name)}'\n"
        if url not in block or name not in sections:
            fault(name, f"no section of {runbook.name} that its runbook_url names")
        if not re.search(rf"alertname: {name}\n\s+eval_time: \S+\n\s+exp_alerts:\n", tests):
            fault(name, "no unit test in which it fires")
        if not re.search(rf"alertname: {name}\n\s+eval_time: \S+\n\s+exp_alerts: \[\]\n", tests):
            fault(name, "no unit test in which it is quiet")
    for section in sections - set(names):
        fault(runbook.name, f"section {section} is of no alert")
    recording = (root / "deploy/prometheus/rules/recording.yml").read_text()
    for block in re.findall(r"- record: .*?(?=\n\n|\Z)", recording, re.S):
        check_expr(block.split("\n", 1)[0], block.split("expr:", 1)[1], known, False)


def main():
    root = pathlib.Path(sys.argv[1])
    known = known_metrics(root)
    uids = {}
    boards = sorted((root / "deploy/grafana/dashboards").glob("*.json"))
    for path in boards:
        check_dashboard(path, known, uids)
    check_alerts(root, known)
    if not boards:
        fault("deploy/grafana/dashboards", "no dashboards")
    print("\n".join(faults))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
