"""Writes the dashboards' JSON from their Python.

    python3 deploy/grafana/generate.py            writes deploy/grafana/dashboards/*.json
    python3 deploy/grafana/generate.py --check    exits with 1, naming the files that differ
"""

import pathlib
import sys

sys.dont_write_bytecode = True

from coordinator import COORDINATOR  # noqa: E402
from fleet import FLEET  # noqa: E402
from job import JOB_BOARD  # noqa: E402
from nodes import NODES  # noqa: E402
from panels import dashboard_json  # noqa: E402
from precision import PRECISION  # noqa: E402

DIRECTORY = pathlib.Path(__file__).parent / "dashboards"


def main():
    files = {
        DIRECTORY / f"{board.uid.removeprefix('nibble-')}.json": dashboard_json(board)
        for board in (FLEET, JOB_BOARD, PRECISION, COORDINATOR, NODES)
    }
    if sys.argv[1:] == ["--check"]:
        stale = [
            path for path, text in files.items() if not path.exists() or path.read_text() != text
        ]
        unknown = set(DIRECTORY.glob("*.json")) - set(files)
        for path in stale:
            print(f"{path.name}: is not as generated; run python3 deploy/grafana/generate.py")
        for path in sorted(unknown):
            print(f"{path.name}: no dashboard of the generator has this name")
        sys.exit(1 if stale or unknown else 0)
    if sys.argv[1:]:
        sys.exit(__doc__)
    for path, text in files.items():
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
