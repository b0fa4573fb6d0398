"""Starts both services as systemd does, with a socket for their reports: each reports that it has started, that it is alive, and that it
stops.

    python3 deploy/systemd/notify_test.py COORDINATOR WORKER
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

SECONDS = 60


class Service:
    """A process of systemd's type notify, with a watchdog of 0.3 s."""

    def __init__(self, directory, name, command):
        path = str(directory / f"{name}.socket")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.settimeout(SECONDS)
        self.log = open(directory / f"{name}.log", "w+")
        # systemd sets WATCHDOG_PID to the process that it starts; unset, it means any.
        environment = {**os.environ, "NOTIFY_SOCKET": path, "WATCHDOG_USEC": "300000"}
        self.process = subprocess.Popen(command, env=environment, stderr=self.log, stdout=self.log)
        self.name = name

    def expect(self, wanted):
        """Reads reports until one has this line."""
        try:
            while True:
                report = self.socket.recv(4096).decode()
                if wanted in report.split("\n"):
                    return report
        except TimeoutError:
            self.log.seek(0)
            sys.exit(f"FAILED: {self.name} does not report {wanted}; its log:\n{self.log.read()}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.expect("STOPPING=1")
        code = self.process.wait(SECONDS)
        if code != 0:
            sys.exit(f"FAILED: {self.name} ends with {code}")


def main():
    coordinator, worker = sys.argv[1:3]
    services = []
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        # A port that is free now, for both programs to know.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        try:
            services.append(Service(directory, "coordinator", [coordinator, "--cluster", "notify", "--store", str(directory / "store"),
                                                               "--listen", address, "--http", "127.0.0.1:0"]))
            report = services[-1].expect("READY=1")
            assert "STATUS=cluster notify" in report, report
            services.append(Service(directory, "worker", [worker, "--coordinator", address, "--data", str(directory / "data"), "--name", "w",
                                                          "--http", "127.0.0.1:0"]))
            report = services[-1].expect("READY=1")
            assert "STATUS=w, 1 slots" in report, report
            for one in services:
                one.expect("WATCHDOG=1")
                one.expect("WATCHDOG=1")
            for one in reversed(services):
                one.stop()
        finally:
            for one in services:
                if one.process.poll() is None:
                    one.process.kill()
                    one.process.wait()
    print("both services report to systemd")


if __name__ == "__main__":
    main()
