#!/usr/bin/env python3
"""Draws dashboards from a Prometheus that scrapes a cluster, without Grafana.

    docs/pictures/dashboards.py http://127.0.0.1:9090 --set cluster=local --set job=train-1 \\
        --minutes 5 -o docs/pictures deploy/grafana/dashboards/*.json

Sends every query of every panel, and every annotation, as Grafana would, and writes dashboard-NAME.svg for
each file. Variables that are not set have the value of the dashboard, or match everything.
"""
import argparse
import json
import math
import pathlib
import re
import sys
import time
import urllib.parse
import urllib.request

from dashboard_svg import draw

POINTS = 60  # of a series
INSTANT = ("stat", "bargauge", "table")


class Prometheus:
    def __init__(self, url, begin, end, values):
        self.url, self.begin, self.end, self.values = url, begin, end, values
        self.step = max(1, round((end - begin) / POINTS))

    def call(self, method, **parameters):
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{method}?{query}", timeout=60) as answer:
            return json.load(answer)["data"]["result"]

    def filled(self, text):
        for name, value in sorted(self.values.items(), key=lambda one: -len(one[0])):
            text = text.replace(f"${name}", value)
        if "$" in text:
            sys.exit(f"error: {text}: no value for a variable; give it with --set NAME=VALUE")
        return text

    def series(self, expr, legend, instant=False):
        """(legend, [(time, value), …]) of each series, by legend."""
        if instant:
            results = self.call("query", query=self.filled(expr), time=self.end)
            results = [dict(one, values=[one["value"]]) for one in results]
        else:
            results = self.call("query_range", query=self.filled(expr), start=self.begin, end=self.end, step=self.step)
        found = []
        for one in results:
            name = re.sub(r"\{\{(\w+)\}\}", lambda match: one["metric"].get(match[1], ""), self.filled(legend))
            points = [(float(at), float(value)) for at, value in one["values"]]
            found.append((" ".join(name.split()), points))
        return sorted(found, key=lambda pair: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", pair[0])])


def panel_series(panel, prometheus):
    series = []
    for target in panel["targets"]:
        series += prometheus.series(target["expr"], target["legendFormat"], panel["type"] in INSTANT)
    return [(legend, points) for legend, points in series if any(not math.isnan(v) for _, v in points)]


def annotation_marks(board, prometheus):
    """(time, color): where an annotation's series begins; not those that began with the range."""
    marks = []
    for one in board["annotations"]["list"]:
        for _, points in prometheus.series(one["expr"], one["name"]):
            starts = [points[0][0]] + [b[0] for a, b in zip(points, points[1:]) if b[0] - a[0] > 1.5 * prometheus.step]
            marks += [(at, one["iconColor"]) for at in starts if at > prometheus.begin + prometheus.step]
    return marks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prometheus", help="its URL")
    parser.add_argument("dashboards", nargs="+", type=pathlib.Path, help="JSON files")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable")
    parser.add_argument("--minutes", type=float, default=5, help="length of the time range, which ends now")
    parser.add_argument("--window", default="20s", help="of rates: at least four scrape intervals")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("."), help="directory")
    arguments = parser.parse_args()
    end = int(time.time())
    begin = end - round(arguments.minutes * 60)
    given = dict(one.split("=", 1) for one in arguments.set)
    for path in arguments.dashboards:
        board = json.loads(path.read_text())
        values = {"__rate_interval": arguments.window}
        for variable in board["templating"]["list"]:
            default = variable["query"] if variable["type"] == "textbox" else ".*"
            values[variable["name"]] = given.get(variable["name"], default)
        prometheus = Prometheus(arguments.prometheus.rstrip("/"), begin, end, values)
        data = {one["id"]: panel_series(one, prometheus) for one in board["panels"] if one["type"] != "row"}
        shown = [f"{name} {values[name]}" for name in ("cluster", "job", "reference") if name in values]
        svg = draw(board, ", ".join(shown), data, begin, end, annotation_marks(board, prometheus))
        output = arguments.output / f"dashboard-{path.stem}.svg"
        output.write_text(svg)
        empty = [one["title"] for one in board["panels"] if one["type"] != "row" and not data[one["id"]]]
        without = f"; without data: {', '.join(empty)}" if empty else ""
        print(f"{output}: {len(svg) / 1000:.0f} kB, {len(data)} panels{without}")


if __name__ == "__main__":
    main()
