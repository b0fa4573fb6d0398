"""Panels and dashboards as values, and the JSON that Grafana (10 and later) reads.

A panel is stated once: its queries with their legends, its unit, title and description. Every
query goes to the data source that the dashboard's variable `datasource` selects.
"""

import dataclasses
import json

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 39  # of Grafana 10.4; later versions read it
COLUMNS = 24  # of Grafana's grid

# Units: Grafana's identifiers. "none" is a number without a unit.
NONE = "none"
COUNT = "short"
SHARE = "percentunit"
SECONDS = "s"
BYTES = "bytes"
BYTES_PER_SECOND = "Bps"
PER_SECOND = "suffix:/s"
TOKENS = "suffix: tokens"
TOKENS_PER_SECOND = "suffix: tokens/s"
FLOPS = "flops"
NATS = "suffix: nats"
OCTAVES = "suffix: octaves"
CPUS = "suffix: CPUs"
WATTS = "watt"
CELSIUS = "celsius"
HERTZ = "hertz"

YES_NO = ((1, "yes", "green"), (0, "no", "red"))  # states

# Ends the description of a panel that has data only where workers have NVIDIA cards.
NEEDS_CARD = "Needs an NVIDIA card."


@dataclasses.dataclass(frozen=True)
class Query:
    expr: str
    legend: str


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    description: str
    queries: tuple
    # timeseries, stacked, stat, bars (the latest values), heatmap (a row per legend), matrix (the
    # latest values, rows x columns), timeline (a row per legend, coloured by state).
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    log: bool = False
    bound: float | None = None  # red from this value on; a line in graphs
    warning: float | None = None  # yellow from this value on
    low_is_bad: bool = False  # red below the bound, and yellow below the warning
    least: float | None = None  # begin of the axis
    most: float | None = None  # end of the axis, which begins at 0
    decimals: int | None = None
    states: tuple = ()  # (value, text, color) each: shown instead of the number
    rows: str = ""  # of a matrix: label
    columns: str = ""  # of a matrix: label


@dataclasses.dataclass(frozen=True)
class Row:
    title: str
    panels: tuple


@dataclasses.dataclass(frozen=True)
class Variable:
    name: str
    label: str
    description: str
    query: str  # of kind query: such as label_values(...); of kind text: the default
    kind: str = "query"
    all: bool = False  # offers "All", which is the default


@dataclasses.dataclass(frozen=True)
class Annotation:
    name: str
    color: str
    expr: str
    title: str
    text: str


@dataclasses.dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    description: str
    variables: tuple
    rows: tuple
    annotations: tuple = ()


def panel(title, unit, description, *queries, **options):
    """`queries`: (expression, legend) each."""
    return Panel(title, unit, description, tuple(Query(*query) for query in queries), **options)


def tile(title, unit, description, expr, legend=None, **options):
    """One number, large; `legend`: its name, or names of several by label."""
    return panel(
        title,
        unit,
        description,
        (expr, legend or title.lower()),
        **{"kind": "stat", "width": 3, "height": 4} | options,
    )


_TYPES = {
    "timeseries": "timeseries",
    "stacked": "timeseries",
    "stat": "stat",
    "bars": "bargauge",
    "heatmap": "heatmap",
    "matrix": "table",
    "timeline": "state-timeline",
}


def _target(number, query, kind):
    instant = kind in ("stat", "bars", "matrix")
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "format": "table" if kind == "matrix" else "time_series",
        "instant": instant,
        "legendFormat": query.legend,
        "range": not instant,
        "refId": chr(ord("A") + number),
    }


def _field_config(one):
    defaults = {"unit": one.unit, "custom": {}}
    if one.decimals is not None:
        defaults["decimals"] = one.decimals
    if one.most is not None:
        defaults["max"] = one.most
    if one.least is not None or one.most is not None:
        defaults["min"] = one.least or 0
    colors = (("yellow", one.warning), ("red", one.bound))
    if one.low_is_bad:
        colors = (("yellow", one.bound), ("green", one.warning))
    steps = [{"color": "red" if one.low_is_bad else "green", "value": None}]
    for color, value in colors:
        if value is not None:
            steps.append({"color": color, "value": value})
    defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if one.states:
        texts = {
            str(value): {"color": color, "index": index, "text": text}
            for index, (value, text, color) in enumerate(one.states)
        }
        defaults["mappings"] = [{"options": texts, "type": "value"}]
    if one.kind in ("timeseries", "stacked"):
        defaults["custom"] = {
            "drawStyle": "line",
            "fillOpacity": 40 if one.kind == "stacked" else 0,
            "lineWidth": 1,
            "scaleDistribution": {"type": "log", "log": 10} if one.log else {"type": "linear"},
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if one.kind == "stacked" else "none"},
            "thresholdsStyle": {"mode": "off" if one.bound is None else "dashed"},
        }
    if one.kind == "timeline":
        defaults["custom"] = {"fillOpacity": 70, "lineWidth": 0}
        if not one.states:
            defaults["color"] = {"mode": "palette-classic"}
    if one.kind == "matrix":
        defaults["color"] = {"mode": "continuous-GrYlRd"}
        defaults["custom"] = {
            "align": "right",
            "cellOptions": {"mode": "basic", "type": "color-background"},
        }
    return {"defaults": defaults, "overrides": []}


def _options(one):
    if one.kind in ("timeseries", "stacked"):
        return {
            "legend": {
                "calcs": ["lastNotNull"],
                "displayMode": "table",
                "placement": "bottom",
                "showLegend": True,
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if one.kind == "stat":
        return {
            "colorMode": "value",
            "graphMode": "none",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "auto",
        }
    if one.kind == "bars":
        return {
            "displayMode": "basic",
            "orientation": "horizontal",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    if one.kind == "heatmap":
        return {
            "calculate": False,
            "cellGap": 1,
            "cellValues": {"unit": one.unit},
            "color": {"mode": "scheme", "scheme": "Spectral", "reverse": True, "steps": 64},
            "legend": {"show": True},
            "rowsFrame": {"layout": "auto"},
            "yAxis": {"axisPlacement": "left", "unit": "none"},
        }
    if one.kind == "timeline":
        return {
            "alignValue": "left",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
            "mergeValues": True,
            "rowHeight": 0.8,
            "showValue": "auto",
            "tooltip": {"mode": "single", "sort": "none"},
        }
    return {"cellHeight": "sm", "showHeader": True}


def _panel(one, number, x, y):
    made = {
        "datasource": DATASOURCE,
        "description": one.description,
        "fieldConfig": _field_config(one),
        "gridPos": {"h": one.height, "w": one.width, "x": x, "y": y},
        "id": number,
        "options": _options(one),
        "targets": [_target(i, query, one.kind) for i, query in enumerate(one.queries)],
        "title": one.title,
        "type": _TYPES[one.kind],
    }
    if one.kind == "matrix":
        made["transformations"] = [
            {
                "id": "groupingToMatrix",
                "options": {
                    "columnField": one.columns,
                    "rowField": one.rows,
                    "valueField": "Value",
                },
            }
        ]
    return made


def _place(rows):
    """Panels from left to right in rows with titles, as the grid has room."""
    placed = []
    y = 0
    for row in rows:
        placed.append(
            {
                "collapsed": False,
                "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
                "id": len(placed) + 1,
                "panels": [],
                "title": row.title,
                "type": "row",
            }
        )
        x, y, height = 0, y + 1, 0
        for one in row.panels:
            if x + one.width > COLUMNS:
                x, y, height = 0, y + height, 0
            placed.append(_panel(one, len(placed) + 1, x, y))
            x, height = x + one.width, max(height, one.height)
        y += height
    return placed


def _variable(one):
    made = {"description": one.description, "hide": 0, "label": one.label, "name": one.name}
    if one.kind == "text":
        current = {"selected": True, "text": one.query, "value": one.query}
        made |= {"current": current, "options": [current]}
        return made | {"query": one.query, "type": "textbox"}
    made |= {
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if one.all else {},
        "datasource": DATASOURCE,
        "includeAll": one.all,
        "multi": one.all,
        "options": [],
        "query": {"query": one.query, "refId": "variable"},
        "refresh": 2,  # with the time range: offers finished jobs for the time that they ran
        "regex": "",
        "sort": 1,
        "type": "query",
    }
    if one.all:
        made["allValue"] = ".*"
    return made


def _annotation(one):
    return {
        "datasource": DATASOURCE,
        "enable": True,
        "expr": one.expr,
        "iconColor": one.color,
        "name": one.name,
        "step": "15s",
        "textFormat": one.text,
        "titleFormat": one.title,
    }


def dashboard_json(board):
    """The dashboard's file."""
    source = {
        "current": {},
        "description": "The Prometheus that scrapes the cluster",
        "hide": 0,
        "includeAll": False,
        "label": "Data source",
        "multi": False,
        "name": "datasource",
        "options": [],
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "type": "datasource",
    }
    made = {
        "annotations": {"list": [_annotation(one) for one in board.annotations]},
        "description": board.description,
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "id": None,
        "links": [
            {
                "asDropdown": False,
                "icon": "external link",
                "includeVars": True,
                "keepTime": True,
                "tags": ["nibble"],
                "title": "Nibble",
                "type": "dashboards",
            }
        ],
        "panels": _place(board.rows),
        "refresh": "15s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": ["nibble"],
        "templating": {"list": [source] + [_variable(one) for one in board.variables]},
        "time": {"from": "now-3h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "title": board.title,
        "uid": board.uid,
        "version": 1,
        "weekStart": "",
    }
    return json.dumps(made, indent=1, sort_keys=True) + "\n"
