"""Checks rendered manifests against the practices that Nibble's deployment keeps, one file of practices/ for each subject.

    python3 deploy/kubernetes/lint.py FOLDER [PROGRAM=HELP...]

    FOLDER        cpu-dev.yaml, gpu.yaml and monitoring.yaml, such as deploy/kubernetes/golden
    PROGRAM=HELP  a file with what PROGRAM --help prints: every flag that a manifest gives it must be there

Prints what is wrong and exits with 1.
"""

import importlib
import pathlib
import sys

import yaml

from practices.manifests import CLUSTERS, RULES, Manifests

for subject in ("cluster", "security", "network", "life", "configuration", "monitoring"):
    importlib.import_module(f"practices.{subject}")


def faults_of(overlay, documents, helps=None):
    """Pairs of a rule's name and a fault."""
    manifests = Manifests(overlay, documents, helps or {})
    return [(check.__name__, fault) for check, overlays in RULES if overlay in overlays for fault in check(manifests)]


def main():
    folder, rest = pathlib.Path(sys.argv[1]), sys.argv[2:]
    pairs = [one.split("=", 1) for one in rest]
    helps = {program: pathlib.Path(path).read_text() for program, path in pairs}
    found = 0
    for overlay in (*CLUSTERS, "monitoring"):
        documents = list(yaml.safe_load_all((folder / f"{overlay}.yaml").read_text()))
        for name, fault in faults_of(overlay, documents, helps):
            found += 1
            print(f"{overlay}: {fault} ({name})")
    print(f"{len(RULES)} rules, {found} faults")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
