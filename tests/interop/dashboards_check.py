"""Reads the dashboards with grafana-foundation-sdk's models, and writes them again.

    dashboards_check.py deploy/grafana/dashboards/*.json

The models are generated from Grafana's own schemas, and have only the fields that its version has. A
field that is lost between reading and writing is one that Grafana does not know; panel types, queries
and units that the SDK does not know are faults too. Prints the faults and exits with 1, or the number
of panels.
"""

import importlib.metadata
import json
import pathlib
import sys

from grafana_foundation_sdk.cog import plugins, runtime
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard, prometheus, units

# Fields of annotations that Grafana's schema leaves to the data source: Prometheus' reads them.
OF_PROMETHEUS = ("step", "textFormat", "titleFormat")
# Forms of units that take any text.
CUSTOM_UNITS = ("prefix:", "suffix:", "time:")


def lost(before, after, where):
    """The places whose value is absent, or another, in `after`. Null is the same as absent."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            fault
            for key, value in before.items()
            if value is not None and not (".annotations." in where and key in OF_PROMETHEUS)
            for fault in lost(value, after.get(key), f"{where}.{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            fault
            for index, (one, other) in enumerate(zip(before, after))
            for fault in lost(one, other, f"{where}[{index}]")
        ]
    return [] if before == after else [f"{where}: {before!r} becomes {after!r}"]


def panel_faults(panel, where, known_units):
    faults = []
    if runtime.panelcfg_config(panel.type_val) is None:
        faults.append(f"{where}: no panel type {panel.type_val}")
    unit = panel.field_config.defaults.unit
    if unit not in known_units and not unit.startswith(CUSTOM_UNITS):
        faults.append(f"{where}: no unit {unit}")
    for target in panel.targets:
        if not isinstance(target, prometheus.Dataquery):
            faults.append(f"{where}: a query is a {type(target).__name__}, not Prometheus'")
    return faults


def board_faults(board, name):
    """Faults of a dashboard's JSON, and the number of its panels."""
    known_units = {value for value in vars(units).values() if isinstance(value, str)}
    read = dashboard.Dashboard.from_json(board)
    faults = lost(board, json.loads(JSONEncoder().encode(read)), name)
    panels = [panel for panel in read.panels if not isinstance(panel, dashboard.RowPanel)]
    for panel in panels:
        faults += panel_faults(panel, f"{name}: {panel.title}", known_units)
    return faults, len(panels)


def check_the_check(text):
    """Each fault that is put into a dashboard is found."""
    for change, found in (
        (lambda panel: panel["options"].update(noSuchOption=1), "noSuchOption"),
        (lambda panel: panel.update(type="no-such-panel"), "no panel type"),
        (lambda panel: panel["fieldConfig"]["defaults"].update(unit="parsecs"), "no unit parsecs"),
    ):
        board = json.loads(text)
        change(next(panel for panel in board["panels"] if panel["type"] != "row"))
        faults, _ = board_faults(board, "changed")
        if not any(found in fault for fault in faults):
            sys.exit(f"dashboards_check.py finds no '{found}', but: {faults}")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    plugins.register_default_plugins()
    faults, panels = [], 0
    for path in map(pathlib.Path, sys.argv[1:]):
        found, count = board_faults(json.loads(path.read_text()), path.name)
        faults += found
        panels += count
    if faults:
        sys.exit("\n".join(faults))
    check_the_check(pathlib.Path(sys.argv[1]).read_text())
    version = importlib.metadata.version("grafana-foundation-sdk").split("!")[-1]
    print(f"{panels} panels of {len(sys.argv) - 1} dashboards are Grafana {version}'s, no field lost")


if __name__ == "__main__":
    main()
