"""Lists the packages of a root file system as SPDX 2.3 in JSON, from its dpkg database, and NVIDIA's libraries, which are in no package.

    python3 deploy/images/sbom.py ROOT.tar OUT.spdx.json --name NAME --created SECONDS [--library ./PATH=VERSION]...
    python3 deploy/images/sbom.py --check OUT.spdx.json ROOT.tar     every package and library of the root is there, and nothing else
"""

import argparse
import hashlib
import json
import re
import sys
import tarfile
import time
import urllib.parse

# Libraries that images with CUDA have beside Debian's packages.
NVIDIA = re.compile(r"\./usr/lib/x86_64-linux-gnu/lib(cu|nccl|nv)[^/]*\.so(\.|$)")


def installed(root):
    """Name, version, architecture and maintainer of each installed package, by name."""
    with tarfile.open(root) as tar:
        status = tar.extractfile("./var/lib/dpkg/status").read().decode()
    found = []
    for block in status.split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][A-Za-z-]*): (.*)$", block, re.M))
        if fields.get("Status") == "install ok installed":
            found.append(fields)
    return sorted(found, key=lambda one: one["Package"])


def libraries(root, paths=None):
    """SHA-256 by path of the libraries at `paths`, by default of those that look like NVIDIA's."""
    found = {}
    with tarfile.open(root) as tar:
        for member in tar:
            wanted = member.name in paths if paths is not None else NVIDIA.match(member.name)
            if wanted and member.isreg():
                found[member.name] = hashlib.file_digest(tar.extractfile(member), "sha256").hexdigest()
    return found


def document(root, name, created, versions):
    packages, relations = [], []
    digest = hashlib.sha256()
    for fields in installed(root):
        key = f"{fields['Package']}_{fields['Version']}_{fields['Architecture']}"
        digest.update(key.encode() + b"\n")
        identity = "SPDXRef-Package-" + re.sub(r"[^A-Za-z0-9.-]", "-", fields["Package"])
        vendor = "nibble" if fields["Package"] == "nibble" else "debian"
        version = urllib.parse.quote(fields["Version"], safe="")
        packages.append({
            "SPDXID": identity,
            "name": fields["Package"],
            "versionInfo": fields["Version"],
            "supplier": "Organization: " + fields["Maintainer"].split(" <")[0],
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": "Apache-2.0" if vendor == "nibble" else "NOASSERTION",
            "copyrightText": "NOASSERTION",
            "externalRefs": [{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"pkg:deb/{vendor}/{fields['Package']}@{version}?arch={fields['Architecture']}",
            }],
        })
        relations.append({"spdxElementId": "SPDXRef-Image", "relationshipType": "CONTAINS", "relatedSpdxElement": identity})
    digests = libraries(root, versions)
    for path, version in sorted(versions.items()):
        if path not in digests:
            sys.exit(f"{path}, a --library, is no file of {root}")
        digest.update(f"{path} {digests[path]}\n".encode())
        file_name = path.rsplit("/", 1)[1]
        identity = "SPDXRef-Library-" + re.sub(r"[^A-Za-z0-9.-]", "-", file_name)
        packages.append({
            "SPDXID": identity,
            "name": file_name.split(".so")[0],
            "versionInfo": version,
            "packageFileName": path,
            "supplier": "Organization: NVIDIA Corporation",
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "checksums": [{"algorithm": "SHA256", "checksumValue": digests[path]}],
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": "NOASSERTION",
            "copyrightText": "NOASSERTION",
        })
        relations.append({"spdxElementId": "SPDXRef-Image", "relationshipType": "CONTAINS", "relatedSpdxElement": identity})
    image = {
        "SPDXID": "SPDXRef-Image",
        "name": name,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "primaryPackagePurpose": "CONTAINER",
    }
    describes = {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-Image"}
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"urn:nibble:sbom:{name}:{digest.hexdigest()}",
        "creationInfo": {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created)),
            "creators": ["Tool: nibble-sbom"],
        },
        "packages": [image, *packages],
        "relationships": [describes, *relations],
    }


def check(path, root):
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    listed, files = set(), {}
    for one in found["packages"]:
        if "packageFileName" in one:
            files[one["packageFileName"]] = one["checksums"][0]["checksumValue"]
        elif "versionInfo" in one:
            listed.add((one["name"], one["versionInfo"]))
    there = {(one["Package"], one["Version"]) for one in installed(root)}
    present = libraries(root)
    for path in sorted({path for path, _ in files.items() ^ present.items()}):
        print(f"{path}: {files.get(path, 'nothing')} in the list, {present.get(path, 'nothing')} in the root")
    for name, version in sorted(listed ^ there):
        print(f"{name} {version} is only in the {'list' if (name, version) in listed else 'root'}")
    identities = [one["SPDXID"] for one in found["packages"]]
    related = {one["relatedSpdxElement"] for one in found["relationships"]}
    if len(set(identities)) != len(identities) or set(identities) != related:
        sys.exit("identifiers are not unique, or a package is in no relationship")
    if listed != there or files != present or ("nibble" not in {name for name, _ in there}):
        sys.exit(1)
    print(f"sbom: {len(there)} packages, {len(files)} libraries of NVIDIA")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--name")
    parser.add_argument("--created", type=int)
    parser.add_argument("--library", action="append", default=[])
    given = parser.parse_args()
    if given.check:
        check(given.first, given.second)
        return
    if given.name is None or given.created is None:
        parser.error("--name and --created are needed")
    versions = dict(one.rsplit("=", 1) for one in given.library)
    with open(given.second, "w", encoding="utf-8") as file:
        json.dump(document(given.first, given.name, given.created, versions), file, indent=1, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    main()
