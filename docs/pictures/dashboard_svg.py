"""Draws the panels of a dashboard with their data, as Grafana would arrange them.

Colours, thresholds, mappings, units and axes are those of the panel's JSON; positions are its grid's.
"""
import html
import math

CELL, ROW, GAP = 58, 36, 8  # pixels: column and row of the grid, space between panels
TITLE, LEGEND = 24, 14  # pixels: heading of a panel, line of a legend
PALETTE = (
    "#3b7dd8", "#e0752d", "#4f9d4f", "#c4493d", "#8a63d2", "#b8860b", "#2a9d9d", "#c2549a", "#6b7f2a", "#5f6b7a",
)  # fmt: skip
NAMED = {
    "green": "#3d8b40", "yellow": "#d9a514", "orange": "#e0752d", "red": "#cc3b31", "purple": "#8a63d2", "blue": "#3b7dd8",
}  # fmt: skip
SHADES = ("#2f6db3", "#5a94c8", "#8fbbd9", "#c3dcea", "#f1efdc", "#fbd49b", "#f7a35c", "#e66a3c", "#c3312f")
NEEDS_CARD = "Needs an NVIDIA card."  # ends descriptions (deploy/grafana/panels.py)
SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
IEC = ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"), (1, ""))


def digits(value):
    """At most three significant digits, more for whole numbers below 10,000."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if value == int(value) and abs(value) < 10000:
        return str(int(value))
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def scaled(value, steps, unit):
    for factor, prefix in steps:
        if abs(value) >= factor:
            return f"{digits(value / factor)} {prefix}{unit}".rstrip()
    return f"{digits(value)} {unit}".rstrip()


def duration(seconds):
    for factor, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= factor:
            return f"{digits(seconds / factor)} {unit}"
    return "0 s"


def show(value, unit, decimals=None):
    """A value in Grafana's unit."""
    if not math.isfinite(value):
        return digits(value)
    if decimals is not None:
        return f"{value:.{decimals}f} {unit.removeprefix('suffix:').strip()}".rstrip()
    if unit == "percentunit":
        return f"{digits(value * 100)} %"
    if unit == "s":
        return duration(value)
    if unit == "bytes":
        return scaled(value, IEC, "B")
    suffix = {"Bps": "B/s", "flops": "FLOP/s", "watt": "W", "celsius": "°C", "hertz": "Hz"}
    if unit in suffix:
        return scaled(value, SI, suffix[unit])
    if unit.startswith("suffix:"):
        return f"{digits(value)} {unit.removeprefix('suffix:').strip()}"
    return scaled(value, SI if unit == "short" or abs(value) >= 1e6 else ((1, ""),), "")


def color_of(value, defaults):
    """By the mappings, then the thresholds."""
    for mapping in defaults.get("mappings", []):
        if digits(value) in mapping["options"]:
            return NAMED[mapping["options"][digits(value)]["color"]]
    color = "green"
    for step in defaults["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return NAMED[color]


def text_of(value, defaults):
    for mapping in defaults.get("mappings", []):
        if digits(value) in mapping["options"]:
            return mapping["options"][digits(value)]["text"]
    return show(value, defaults["unit"], defaults.get("decimals"))


def shade(value, low, high):
    if not math.isfinite(value):
        return len(SHADES) - 1
    share = 0 if high <= low else (value - low) / (high - low)
    return min(len(SHADES) - 1, max(0, int(share * len(SHADES))))


class Panel:
    """One panel's SVG. `series`: (legend, [(time, value), …]) each; `marks`: (time, color) each."""

    def __init__(self, panel, series, begin, end, marks):
        self.panel, self.series, self.begin, self.end, self.marks = panel, series, begin, end, marks
        self.defaults = panel["fieldConfig"]["defaults"]
        grid = panel["gridPos"]
        self.width, self.height = grid["w"] * CELL - GAP, grid["h"] * ROW - GAP
        self.out = []

    def text(self, x, y, text, kind="", anchor="start", fill=""):
        kind = f' class="{kind}"' if kind else ""
        anchor = "" if anchor == "start" else f' text-anchor="{anchor}"'
        fill = f' style="fill:{fill}"' if fill else ""
        self.out.append(f'<text x="{x:.0f}" y="{y:.0f}"{kind}{anchor}{fill}>{html.escape(text)}</text>')

    def rect(self, x, y, width, height, fill):
        self.out.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{max(width, 1):.0f}" height="{height:.0f}" fill="{fill}"/>')

    def fitted(self, text, pixels, size=6.2):
        most = max(3, int(pixels / size))
        return text if len(text) <= most else text[: most - 1] + "…"

    def x_of(self, time, left, right):
        return left + (time - self.begin) / max(1, self.end - self.begin) * (right - left)

    def svg(self):
        self.out.append(f'<rect width="{self.width}" height="{self.height}" class="panel"/>')
        self.text(10, 17, self.fitted(self.panel["title"], self.width - 20, 7), "title")
        kind = self.panel["type"]
        if not self.series:
            self.text(self.width / 2, self.height / 2 + 8, "No data", "axis", "middle")
        else:
            {
                "timeseries": self.lines,
                "stat": self.stat,
                "bargauge": self.bars,
                "heatmap": self.heatmap,
                "table": self.table,
                "state-timeline": self.timeline,
            }[kind]()
        return "".join(self.out)

    # --- Kinds

    def stat(self):
        values = [(legend, points[-1][1]) for legend, points in self.series]
        for index, (legend, value) in enumerate(values):
            x = self.width * (index + 0.5) / len(values)
            shown = text_of(value, self.defaults)
            size = min(34, int(self.width / len(values) * 1.5 / max(4, len(shown))))
            y = self.height / 2 + 22
            self.out.append(
                f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" '
                f'style="font-size:{size}px;font-weight:600;fill:{color_of(value, self.defaults)}">'
                f"{html.escape(shown)}</text>"
            )
            if len(values) > 1:
                self.text(x, self.height - 14, legend, "axis", "middle")

    def bars(self):
        values = sorted(((points[-1][1], legend) for legend, points in self.series), reverse=True)
        values = [one for one in values if math.isfinite(one[0])]
        most = self.defaults.get("max") or max([value for value, _ in values] or [1]) or 1
        line = min(34, (self.height - TITLE - 8) / max(1, len(values)))
        left, right = self.width * 0.42, self.width - 64
        for index, (value, legend) in enumerate(values):
            y = TITLE + 6 + index * line
            self.text(left - 8, y + line / 2 + 4, self.fitted(legend, left - 14), "axis", "end")
            self.rect(left, y + 3, right - left, line - 6, "#eef1f4")
            self.rect(left, y + 3, (right - left) * min(1, value / most), line - 6, color_of(value, self.defaults))
            self.text(right + 6, y + line / 2 + 4, text_of(value, self.defaults), "axis")

    def range(self, stacked):
        finite = [v for _, points in stacked for _, v in points if math.isfinite(v)]
        low, high = min(finite or [0]), max(finite or [1])
        for step in self.defaults["thresholds"]["steps"]:
            if step["value"] is not None and high >= step["value"] / 3:
                high = max(high, step["value"] * 1.05)
        low = self.defaults.get("min", low)
        high = self.defaults.get("max", high)
        if high <= low:
            low, high = (low - abs(low) / 2, low + abs(low) / 2) if low else (0, 1)
        return low, high

    def lines(self):
        custom = self.defaults["custom"]
        log = custom["scaleDistribution"]["type"] == "log"
        is_stacked = custom["stacking"]["mode"] == "normal"
        series = self.series
        if log:
            series = [(legend, [(t, v) for t, v in points if v > 0]) for legend, points in series]
        drawn, sums = [], {}
        for legend, points in series:
            if is_stacked:
                for time, value in points:
                    sums[time] = sums.get(time, 0) + (value if math.isfinite(value) else 0)
                points = [(time, sums[time]) for time, _ in points]
            drawn.append((legend, points))
        low, high = self.range(drawn + ([("", [(0, 0)])] if is_stacked and not log else []))
        scale = (lambda v: math.log10(v)) if log else (lambda v: v)
        if log:
            # Whole decades around the positive values.
            finite = [v for _, points in series for _, v in points if math.isfinite(v)] or [1]
            low, high = 10.0 ** math.floor(math.log10(min(finite))), 10.0 ** math.ceil(math.log10(max(finite)))
            high = high if high > low else low * 10
        room = max(1, min(len(series), int((self.height - 130) / LEGEND)))
        ticks = self.ticks(low, high, log)
        left = 18 + 6 * max(len(show(tick, self.defaults["unit"])) for tick in ticks)
        right, top, bottom = self.width - 12, TITLE + 8, self.height - 22 - LEGEND * room
        y_of = lambda v: bottom - (scale(v) - scale(low)) / (scale(high) - scale(low)) * (bottom - top)  # noqa: E731
        self.axes(left, right, top, bottom, low, high, ticks, y_of)
        for index, (legend, points) in reversed(list(enumerate(drawn))):
            color = PALETTE[index % len(PALETTE)]
            path, pen_down, before = "", False, None
            for time, value in points:
                # A pause in the series breaks the line.
                pen_down = pen_down and before is not None and time - before <= (self.end - self.begin) / 12
                before = time
                if not math.isfinite(value):
                    pen_down = False
                    continue
                y = min(bottom, max(top, y_of(value)))
                path += f'{"L" if pen_down else "M"}{self.x_of(time, left, right):.0f} {y:.1f}'
                pen_down = True
            if is_stacked and path and path.count("M") == 1:
                first, last = (self.x_of(points[at][0], left, right) for at in (0, -1))
                area = f"{path}L{last:.0f} {bottom:.0f}L{first:.0f} {bottom:.0f}Z"
                self.out.append(f'<path d="{area}" fill="{color}" opacity=".55"/>')
            self.out.append(f'<path d="{path}" class="line" stroke="{color}"/>')
        self.legend(series, room, bottom + 20 + LEGEND)

    def ticks(self, low, high, log):
        if log:
            decades = range(round(math.log10(low)), round(math.log10(high)) + 1)
            stride = max(1, math.ceil(len(decades) / 5))
            return [10.0**decade for decade in decades][::stride]
        rough = (high - low) / 4
        step = 10 ** math.floor(math.log10(rough))
        step *= next(m for m in (1, 2, 2.5, 5, 10) if step * m >= rough)
        if self.defaults["unit"] == "bytes":
            step = 2.0 ** math.ceil(math.log2(rough))
        elif self.defaults["unit"] == "s" and rough > 20:
            step = next((s for s in (30, 60, 120, 300, 600, 1200, 3600, 7200, 21600) if s >= rough), step)
        first = math.ceil(low / step - 1e-9)
        return [n * step for n in range(first, first + 12) if n * step <= high + step * 1e-9]

    def axes(self, left, right, top, bottom, low, high, ticks, y_of):
        for tick in ticks:
            y = y_of(tick)
            self.out.append(f'<path d="M{left} {y:.0f}H{right}" class="grid"/>')
            self.text(left - 6, y + 4, show(tick, self.defaults["unit"]), "axis", "end")
        for time, color in self.marks:
            if self.begin <= time <= self.end:
                x = self.x_of(time, left, right)
                self.out.append(f'<path d="M{x:.0f} {top}V{bottom:.0f}" class="mark" stroke="{NAMED[color]}"/>')
        for step in self.defaults["thresholds"]["steps"]:
            if step["value"] is not None and low <= step["value"] <= high:
                y = y_of(step["value"])
                self.out.append(f'<path d="M{left} {y:.0f}H{right}" class="mark" stroke="{NAMED[step["color"]]}"/>')
        self.times(left, right, bottom + 13)

    def times(self, left, right, y):
        for share in (0, 0.25, 0.5, 0.75, 1):
            minutes, seconds = divmod(int(share * (self.end - self.begin)), 60)
            x = left + share * (right - left)
            self.text(x, y, f"{minutes}:{seconds:02d}", "axis", "end" if share == 1 else "middle" if share else "start")

    def legend(self, series, room, y):
        hidden = len(series) - room
        for index, (legend, points) in enumerate(series[: room - (1 if hidden else 0)]):
            self.rect(12, y - 8, 10, 3, PALETTE[index % len(PALETTE)])
            self.text(28, y - 3, self.fitted(legend, self.width - 130), "axis")
            if points:
                self.text(self.width - 12, y - 3, text_of(points[-1][1], self.defaults), "axis", "end")
            y += LEGEND
        if hidden:
            self.text(28, y - 3, f"and {hidden + 1} more", "axis")

    def timeline(self):
        left, right, top = min(self.width * 0.36, 220), self.width - 12, TITLE + 6
        line = min(30, (self.height - top - 24) / len(self.series))
        for index, (legend, points) in enumerate(self.series):
            y = top + index * line
            self.text(left - 8, y + line / 2 + 4, self.fitted(legend, left - 16), "axis", "end")
            runs = []
            step = min((b[0] - a[0] for a, b in zip(points, points[1:])), default=1)
            for time, value in points:
                if runs and runs[-1][2] == value and time - runs[-1][1] <= 1.5 * step:
                    runs[-1][1] = time
                else:
                    runs.append([time, time, value])
            for begin, end, value in runs:
                x, x_end = self.x_of(begin, left, right), self.x_of(min(self.end, end + step), left, right)
                color = PALETTE[int(value) % len(PALETTE) if math.isfinite(value) else 0]
                if self.defaults.get("mappings"):
                    color = color_of(value, self.defaults)
                self.rect(x, y + 2, x_end - x, line - 4, color)
                shown = text_of(value, self.defaults)
                if x_end - x > 8 * len(shown):
                    self.text(x + 5, y + line / 2 + 4, shown, "state")
        self.times(left, right, self.height - 8)

    def heatmap(self):
        left, right, top, bottom = min(self.width * 0.3, 200), self.width - 12, TITLE + 6, self.height - 24
        finite = [v for _, points in self.series for _, v in points if math.isfinite(v)]
        low, high = min(finite or [0]), max(finite or [1])
        line = (bottom - top) / len(self.series)
        every = math.ceil(11 / line)
        strokes = {}
        for index, (legend, points) in enumerate(self.series):
            y = top + (index + 0.5) * line
            if index % every == 0:
                self.text(left - 6, y + 4, self.fitted(legend, left - 10, 5.6), "small", "end")
            runs = []
            step = min((b[0] - a[0] for a, b in zip(points, points[1:])), default=1)
            for time, value in points:
                cell = shade(value, low, high)
                if runs and runs[-1][2] == cell and time - runs[-1][1] <= 1.5 * step:
                    runs[-1][1] = time
                else:
                    runs.append([time, time, cell])
            for begin, end, cell in runs:
                x = self.x_of(begin, left, right)
                width = self.x_of(min(self.end, end + step), left, right) - x
                strokes.setdefault(cell, []).append(f"M{x:.0f} {y:.1f}h{max(1, width):.0f}")
        for cell, paths in sorted(strokes.items()):
            pen = f'stroke="{SHADES[cell]}" stroke-width="{line:.1f}" fill="none"'
            self.out.append(f'<path d="{"".join(paths)}" {pen}/>')
        self.times(left, right, self.height - 8)
        scale = f"{show(low, self.defaults['unit'])} to {show(high, self.defaults['unit'])}"
        self.text(self.width - 12, 17, scale, "axis", "end")

    def table(self):
        """Rows and columns are in the legends, "row column"."""
        cells = {}
        for legend, points in self.series:
            row, _, column = legend.partition(" ")
            cells.setdefault(row, {})[column] = points[-1][1]
        columns = sorted({column for row in cells.values() for column in row})
        finite = [v for row in cells.values() for v in row.values() if math.isfinite(v)]
        low, high = min(finite or [0]), max(finite or [1])
        left, top = min(self.width * 0.3, 170), TITLE + 20
        width, line = (self.width - left - 10) / len(columns), min(20, (self.height - top - 8) / len(cells))
        for index, column in enumerate(columns):
            self.text(left + (index + 0.5) * width, top - 5, self.fitted(column, width, 5.4), "small", "middle")
        for number, (row, values) in enumerate(sorted(cells.items())):
            y = top + number * line
            if line >= 9:
                self.text(left - 6, y + line / 2 + 4, self.fitted(row, left - 10, 5.6), "small", "end")
            for index, column in enumerate(columns):
                if column not in values:
                    continue
                cell = shade(values[column], low, high)
                self.rect(left + index * width + 1, y + 1, width - 2, line - 1, SHADES[cell])
                if line >= 12:
                    fill = "#fff" if cell in (0, 1, 7, 8) else "#24292f"
                    shown = show(values[column], self.defaults["unit"])
                    self.text(left + (index + 0.5) * width, y + line / 2 + 4, shown, "small", "middle", fill)


STYLE = """
text{font:11px system-ui,sans-serif;fill:#24292f}
.panel{fill:#fff;stroke:#d8dee4}.title{font-size:12px;font-weight:600}.row{font-size:15px;font-weight:600}
.head{font-size:20px;font-weight:600}.axis{fill:#57606a}.small{font-size:9.5px;fill:#57606a}
.state{fill:#fff}.grid{stroke:#eaeef2;fill:none}.line{fill:none;stroke-width:1.4}.mark{fill:none;stroke-dasharray:4 3}
"""


def without_cards(board, data):
    """The ids of panels that need a card, in rows in which none of them has data."""
    rows = []
    for one in board["panels"]:
        rows = rows + [[]] if one["type"] == "row" else rows[:-1] + [rows[-1] + [one]]
    needing = [[one for one in row if one["description"].endswith(NEEDS_CARD)] for row in rows]
    return {one["id"] for row in needing if not any(data[one["id"]] for one in row) for one in row}


def placed(board, left_out):
    """The panels without those left out, which the next ones of their row take the place of."""
    x, y, bottom, panels = 0, 0, 0, []
    for one in board["panels"]:
        grid = one["gridPos"]
        if one["id"] in left_out:
            continue
        if one["type"] == "row" or x + grid["w"] > 24:
            x, y = 0, bottom
        panels.append(dict(one, gridPos=dict(grid, x=x, y=y)))
        bottom = max(bottom, y + grid["h"])
        x += grid["w"]
    return panels, bottom


def draw(board, subtitle, data, begin, end, marks):
    """The dashboard's SVG. `data`: series by the panel's id. Without cards, their panels are left out."""
    left_out = without_cards(board, data)
    panels, bottom = placed(board, left_out)
    head, width = 44, 24 * CELL + GAP
    height = head + bottom * ROW
    if left_out:
        subtitle += f"; no NVIDIA card, hence without {len(left_out)} panels"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(board["title"])}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#f6f8fa"/>',
        f'<text x="{GAP}" y="28" class="head">{html.escape(board["title"])}</text>',
        f'<text x="{width - GAP}" y="28" class="axis" text-anchor="end">{html.escape(subtitle)}</text>',
    ]
    for one in panels:
        x, y = GAP + one["gridPos"]["x"] * CELL, head + one["gridPos"]["y"] * ROW
        if one["type"] == "row":
            out.append(f'<text x="{x}" y="{y + 24}" class="row">{html.escape(one["title"])}</text>')
            continue
        panel = Panel(one, data[one["id"]], begin, end, marks)
        out.append(f'<g transform="translate({x} {y})"><title>{html.escape(one["description"])}</title>{panel.svg()}</g>')
    return "\n".join(out) + "\n</svg>\n"
