"""Prepares a container of an unpacked image for runc, with the restrictions of the manifests in deploy/kubernetes.

    python3 deploy/images/container.py BUNDLE DIRECTORY --name NAME --network FILE [--state PATH] [--read-only PATH=TARGET]... -- COMMAND...

    BUNDLE      made by `umoci unpack`: its root file system is used read-only
    DIRECTORY   gets config.json
    --network   the file of a network namespace
    --state     the directory that becomes /var/lib/nibble
"""

import argparse
import json
import pathlib


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("directory")
    parser.add_argument("--name", required=True)
    parser.add_argument("--network", required=True)
    parser.add_argument("--state")
    parser.add_argument("--read-only", action="append", default=[])
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    bundle = pathlib.Path(given.bundle).resolve()
    config = json.loads((bundle / "config.json").read_text())

    process = config["process"]
    process.update(args=given.command, terminal=False, noNewPrivileges=True)
    process["capabilities"] = {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")}
    config["root"] = {"path": str(bundle / "rootfs"), "readonly": True}
    config["hostname"] = given.name
    spaces = [one for one in config["linux"]["namespaces"] if one["type"] not in ("network", "user")]
    config["linux"]["namespaces"] = [*spaces, {"type": "network", "path": given.network}]
    config["linux"].pop("uidMappings", None)
    config["linux"].pop("gidMappings", None)

    mounts = [one for one in config["mounts"] if one["destination"] not in ("/tmp", "/dev/shm", "/etc/resolv.conf")]
    for target, size in (("/tmp", "256m"), ("/dev/shm", "256m")):
        options = ["nosuid", "nodev", "mode=1777", f"size={size}"]
        mounts.append({"destination": target, "type": "tmpfs", "source": "tmpfs", "options": options})
    if given.state:
        mounts.append({"destination": "/var/lib/nibble", "type": "bind", "source": given.state, "options": ["bind", "rw", "nosuid", "nodev"]})
    for one in given.read_only:
        source, target = one.split("=", 1)
        mounts.append({"destination": target, "type": "bind", "source": source, "options": ["bind", "ro", "nosuid", "nodev"]})
    config["mounts"] = mounts
    (pathlib.Path(given.directory) / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    main()
