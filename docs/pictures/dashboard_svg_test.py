"""Every dashboard is drawn from made-up data, and values are shown in the panels' units."""
import json
import pathlib
import re
import unittest
import xml.etree.ElementTree

import dashboard_svg as svg

BOARDS = sorted(pathlib.Path("deploy/grafana/dashboards").glob("*.json"))
BEGIN, END = 1000, 1300


def series(panel, count):
    """`count` rising series for each query with labels, and one for each other."""
    found = []
    for target in panel["targets"]:
        labels = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
        for number in range(count if labels else 1):
            legend = re.sub(r"\{\{(\w+)\}\}", lambda match: f"{match[1]}-{number}", target["legendFormat"])
            found.append((legend, [(BEGIN + 5 * i, i * (number + 1) / 60) for i in range(61)]))
    return found


def draw(board, count, change=lambda value: value):
    data = {one["id"]: series(one, count) if count else [] for one in board["panels"] if one["type"] != "row"}
    for of_panel in data.values():
        for _, points in of_panel:
            points[:] = [(time, change(value)) for time, value in points]
    return svg.draw(board, "made up", data, BEGIN, END, [(1100, "purple")])


class DrawingTest(unittest.TestCase):
    def test_every_panel_is_drawn_with_many_series_with_one_and_without_data(self):
        self.assertEqual(len(BOARDS), 5)
        for path in BOARDS:
            board = json.loads(path.read_text())
            panels = [one for one in board["panels"] if one["type"] != "row"]
            for count in (0, 1, 40):
                with self.subTest(board=path.name, series=count):
                    text = draw(board, count)
                    drawn = xml.etree.ElementTree.fromstring(text)
                    titles = {one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")}
                    shown = [one for one in panels if count or not one["description"].endswith(svg.NEEDS_CARD)]
                    self.assertLessEqual({one["title"] for one in shown if len(one["title"]) < 20}, titles)
                    self.assertEqual(len(drawn.findall("{http://www.w3.org/2000/svg}g")), len(shown))
                    self.assertNotIn("nan", text)

    def test_constant_tiny_zero_and_not_finite_values_are_drawn(self):
        for value in (1, 0.3, 0, -2, 1e-9, 1e12, float("nan"), float("inf")):
            for path in BOARDS:
                with self.subTest(board=path.name, value=value):
                    drawn = draw(json.loads(path.read_text()), 2, lambda _, value=value: value)
                    xml.etree.ElementTree.fromstring(drawn)

    def test_not_finite_values_break_a_line_and_are_named_in_the_legend(self):
        board = json.loads(BOARDS[2].read_text())
        panel = next(one for one in board["panels"] if one["title"] == "Loss" and one["type"] == "timeseries")
        points = [(1000, 1.0), (1005, float("nan")), (1010, 2.0), (1015, float("inf"))]
        drawn = svg.Panel(panel, [("broken", points)], BEGIN, END, []).svg()
        line = re.search(r'<path d="([^"]*)" class="line"', drawn)[1]
        self.assertEqual(line.count("M"), 2)
        self.assertIn("+Inf", drawn)

    def test_values_are_shown_in_their_unit(self):
        for value, unit, shown in (
            (0.0375, "percentunit", "3.75 %"),
            (90, "s", "1.5 min"),
            (0.0021, "s", "2.1 ms"),
            (2.5e9, "Bps", "2.5 GB/s"),
            (3 * 2**30, "bytes", "3 GiB"),
            (1200, "suffix: tokens/s", "1200 tokens/s"),
            (1.5e9, "hertz", "1.5 GHz"),
            (0, "short", "0"),
            (float("nan"), "s", "NaN"),
        ):
            self.assertEqual(svg.show(value, unit), shown)

    def test_thresholds_and_mappings_choose_color_and_text(self):
        steps = [{"color": "green", "value": None}, {"color": "red", "value": 1}]
        defaults = {"unit": "short", "thresholds": {"steps": steps}}
        self.assertEqual(svg.color_of(0, defaults), svg.NAMED["green"])
        self.assertEqual(svg.color_of(1, defaults), svg.NAMED["red"])
        defaults["mappings"] = [{"options": {"1": {"text": "yes", "color": "green"}}}]
        self.assertEqual(svg.text_of(1, defaults), "yes")
        self.assertEqual(svg.color_of(1, defaults), svg.NAMED["green"])


if __name__ == "__main__":
    unittest.main()
