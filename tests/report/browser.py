"""A page in headless Chromium, driven through its DevTools protocol over a pipe; Python's standard library only.

    python3 tests/report/browser.py report.html picture.png [--width 1280] [--height 800] [--dark] [--whole] [--run SCRIPT]

writes a picture of the page.
"""

import argparse
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 60
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
         "--force-device-scale-factor=1", "--remote-debugging-pipe"]


class Browser:
    """One tab. Collects the errors of the page and the addresses that it requests."""

    def __init__(self, width=1280, height=800, dark=False, program=None):
        program = program or shutil.which("chromium")
        if program is None:
            raise SystemExit("chromium: not found; install Debian's package chromium")
        self.profile = tempfile.mkdtemp(prefix="nibble-browser-")
        to_browser, self.out = os.pipe()
        self.into, from_browser = os.pipe()

        def on_3_and_4():
            # Above 4 first, so that neither is overwritten.
            high = [os.dup(to_browser), os.dup(from_browser)]
            high = [os.dup(fd) if fd < 5 else fd for fd in high]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen([program, *FLAGS, "--user-data-dir=" + self.profile, f"--window-size={width},{height}"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=on_3_and_4)
        os.close(to_browser)
        os.close(from_browser)
        self.rest = b""
        self.number = 0
        self.events = []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.size(width, height)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.out)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.into)
        shutil.rmtree(self.profile, ignore_errors=True)

    def read(self, deadline):
        """The next message; None after the deadline."""
        import select
        while b"\0" not in self.rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.into], [], [], left)[0]:
                return None
            piece = os.read(self.into, 1 << 20)
            if not piece:
                raise RuntimeError("chromium has ended")
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self.read(deadline)
            if answer is None:
                raise RuntimeError(f"chromium did not answer {method} within {PATIENCE_S} s")
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def open(self, path):
        """Opens a file and waits until its script has drawn."""
        self.events.clear()
        self.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
        deadline = time.monotonic() + PATIENCE_S
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            event = self.read(deadline)
            if event is None:
                raise RuntimeError("the page did not load")
            self.events.append(event)
        self.settle()

    def settle(self):
        """Waits until the next frame is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def run(self, script):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def errors(self):
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"].get("exception", {}).get("description", "an exception"))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
        return found

    def requests(self):
        """Addresses that were requested, except the page itself."""
        found = [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [url for url in found[1:] if not url.startswith("data:")]

    def picture(self, path, whole=False):
        options = {}
        if whole:
            self.run("typeof Charts === 'undefined' || Charts.drawAll()")
            self.settle()
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            options = {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
        data = self.call("Page.captureScreenshot", format="png", **options)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page")
    parser.add_argument("picture")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=800)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--whole", action="store_true", help="the whole page, not only its first screen")
    parser.add_argument("--run", default="", help="a script that runs before the picture is taken")
    args = parser.parse_args()
    with Browser(args.width, args.height, args.dark) as browser:
        browser.open(args.page)
        if args.run:
            browser.run(args.run)
            browser.settle()
        browser.picture(args.picture, args.whole)
        for error in browser.errors():
            print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
