"""The report's page in a real browser: no error, no request, the right numbers, zoom and hover, light and dark, on a phone.

    page_test.py WRITE_SAMPLE     the program //client/report:write_sample
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from browser import Browser

SAMPLE = None
DATA = "JSON.parse(document.getElementById('data').textContent)"
# The first chart: losses over the run.
CHART = "document.querySelector('.chart')"


def write_page(directory, name, steps, blocks, every):
    path = pathlib.Path(directory) / name
    path.write_bytes(subprocess.run([SAMPLE, str(steps), str(blocks), str(every)], check=True, stdout=subprocess.PIPE).stdout)
    return path


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.small = write_page(cls.directory.name, "small.html", 300, 6, 20)
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.__exit__()
        cls.directory.cleanup()

    def open(self, path, width=1280, height=800):
        self.browser.size(width, height)
        self.browser.open(path)
        self.browser.run("Charts.drawAll()")

    def tearDown(self):
        self.assertEqual(self.browser.errors(), [])
        self.assertEqual(self.browser.requests(), [])

    def box(self, script):
        return self.browser.run(f"(() => {{ const b = {script}.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }})()")

    def test_the_headline_has_the_numbers_of_the_run(self):
        self.open(self.small)
        facts = dict(self.browser.run("[...document.querySelectorAll('.fact')].map(f => [f.querySelector('.label').textContent, f.querySelector('.value').textContent])"))
        data = json.loads(self.browser.run("document.getElementById('data').textContent"))
        self.assertEqual(facts["Steps"], "300")
        self.assertEqual(facts["Loss"], f"{data['jobs'][0]['loss'][1][-1]:.4f}")
        self.assertEqual(facts["Loss against bf16-6"], "+1.01 ± 0.00 %")
        self.assertEqual(facts["Validation loss"], "2.7100")

    def test_every_section_is_there(self):
        self.open(self.small)
        titles = self.browser.run("[...document.querySelectorAll('h2')].map(h => h.textContent)")
        for title in ("Loss", "Relative loss difference", "Precision of the quantised operands", "Throughput", "Where a step's time goes",
                      "Gradient norm", "Learning rate", "Compared jobs", "Recipe revisions", "Attempts", "Checkpoints", "Events", "Environment", "Resolved recipe", "Spec"):
            self.assertIn(title, titles)

    def test_hovering_shows_the_loss_of_that_step(self):
        self.open(self.small)
        left, top, width, height = self.box(CHART)
        self.browser.mouse("mouseMoved", left + width * 0.6, top + height / 2)
        self.browser.settle()
        tip = self.browser.run(f"{CHART}.querySelector('.tip').innerText")
        step = int("".join(character for character in tip.split("\n")[0] if character.isdigit()))
        raw = self.browser.run(f"{DATA}.jobs[0].loss[1][{step}]")
        other = self.browser.run(f"{DATA}.jobs[1].loss[1][{step}]")
        values = [float(line) for line in tip.split("\n")[1:] if line.replace(".", "").isdigit()]
        self.assertAlmostEqual(values[0], raw, places=3)
        self.assertAlmostEqual(values[2], other, places=3)

    def test_dragging_zooms_every_chart_and_a_double_click_shows_the_whole_run(self):
        self.open(self.small)
        range_text = "document.getElementById('range').textContent"
        self.browser.run("Charts.reset()")
        self.browser.settle()
        self.assertEqual(self.browser.run(range_text), "steps 0 to 299")
        left, top, width, height = self.box(CHART)
        y = top + height / 2
        self.browser.mouse("mouseMoved", left + width * 0.5, y)
        self.browser.mouse("mousePressed", left + width * 0.5, y, button="left", clickCount=1)
        for share in (0.55, 0.6, 0.7):
            self.browser.mouse("mouseMoved", left + width * share, y, button="left", buttons=1)
        self.browser.mouse("mouseReleased", left + width * 0.7, y, button="left", clickCount=1)
        self.browser.settle()
        first, last = [int(word) for word in self.browser.run(range_text).split() if word.isdigit()]
        self.assertTrue(130 < first < 160 and 190 < last < 230, (first, last))
        self.assertTrue(self.browser.run("Charts.drawn.every(chart => Math.abs(chart.px(Charts.view.range[0]) - chart.l) < 0.01)"))
        for _ in (1, 2):
            self.browser.mouse("mousePressed", left + width * 0.5, y, button="left", clickCount=_)
            self.browser.mouse("mouseReleased", left + width * 0.5, y, button="left", clickCount=_)
        self.browser.settle()
        self.assertEqual(self.browser.run(range_text), "steps 0 to 299")

    def test_the_charts_begin_at_the_end_of_the_warm_up(self):
        self.open(self.small)
        self.assertEqual(self.browser.run("document.getElementById('range').textContent"), "steps 6 to 299")
        self.browser.run("document.querySelector('#zoom button:last-child').click()")
        self.browser.settle()
        self.assertEqual(self.browser.run("document.getElementById('range').textContent"), "steps 0 to 299")

    def test_every_compared_job_has_its_recipe_bar(self):
        self.open(self.small)
        bars = self.browser.run("[...document.querySelectorAll('svg[aria-label=\"Recipe over the run\"]')].map(bar => bar.querySelectorAll('rect.segment').length)")
        self.assertEqual(bars, [2, 1])
        self.assertIn("bf16-6", self.browser.run("[...document.querySelectorAll('.scale .key')].map(key => key.textContent)"))

    def test_the_axis_can_be_tokens(self):
        self.open(self.small)
        self.browser.run("Charts.reset()")
        self.browser.run("document.querySelector('#axis button:last-child').click()")
        self.browser.settle()
        self.assertEqual(self.browser.run("document.getElementById('range').textContent"), "4.096k to 1.229M tokens")

    def test_a_cell_of_the_heat_map_shows_its_layer_and_value(self):
        self.open(self.small)
        self.browser.run("document.querySelector('canvas').scrollIntoView({block: 'center'})")
        left, top, width, height = self.box("document.querySelector('canvas')")
        self.browser.mouse("mouseMoved", left + width * 0.5, top + 5)
        self.browser.settle()
        tip = self.browser.run("document.querySelector('canvas').closest('.chart').querySelector('.tip').innerText")
        self.assertIn("block 0", tip)
        self.assertIn("%", tip)
        self.assertIn("blocks.0.", tip)

    def test_light_and_dark_differ_and_follow_the_button(self):
        self.open(self.small)
        color = "getComputedStyle(document.body).backgroundColor"
        light = self.browser.run(color)
        self.browser.run("document.getElementById('theme').click()")
        dark = self.browser.run(color)
        self.assertNotEqual(light, dark)
        self.browser.run("document.getElementById('theme').click()")
        self.assertEqual(self.browser.run(color), light)
        self.browser.run("localStorage.clear()")

    def test_a_phone_needs_no_sideways_scrolling(self):
        self.open(self.small, 390, 844)
        self.assertLessEqual(self.browser.run("document.documentElement.scrollWidth"), 390)

    def test_texts_of_users_are_shown_and_not_run(self):
        evil = "</script><img src=x onerror=\"document.title='broken'\">"
        page = self.small.read_text(encoding="utf-8")
        escaped = json.dumps(evil).replace("<", "\\u003c")
        self.assertIn('"event 3"', page)
        path = self.small.with_name("evil.html")
        path.write_text(page.replace('"event 3"', escaped).replace('"nvfp4-7"', escaped), encoding="utf-8")
        self.open(path)
        self.assertEqual(self.browser.run("document.images.length"), 0)
        self.assertIn(evil, self.browser.run("document.getElementById('title').textContent"))
        self.assertIn(evil, self.browser.run("document.getElementById('main').textContent"))

    def test_a_run_of_100000_steps_and_62_blocks_opens_in_half_a_second(self):
        page = write_page(self.directory.name, "large.html", 100_000, 62, 100)
        first, every = [], []
        # The best of some, since other programs run on this machine, too.
        while len(first) < 2 or (len(first) < 10 and not (min(first) < 500 and min(every) < 1000)):
            self.browser.size(1280, 800)
            self.browser.open(page)
            every.append(self.browser.run("Charts.allDrawn.then(() => Charts.times.all)"))
            first.append(self.browser.run("Charts.times.first"))
        print(f"page of {page.stat().st_size / 1e6:.2f} MB: its window is drawn after {min(first):.0f} ms (of {[round(t) for t in first]}), "
              f"all of it after {min(every):.0f} ms (of {[round(t) for t in every]})")
        self.assertLess(page.stat().st_size, 5_000_000)
        self.assertGreater(min(first), 0)
        self.assertLess(min(first), 500)
        self.assertLess(min(every), 1000)

    def test_charts_outside_of_the_window_are_drawn_without_scrolling(self):
        self.browser.size(1280, 800)
        self.browser.open(self.small)
        self.browser.run("Charts.allDrawn")
        self.assertTrue(self.browser.run("Charts.drawn.every(chart => chart.host.querySelector('svg') !== null)"))


if __name__ == "__main__":
    SAMPLE = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
