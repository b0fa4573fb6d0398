"""Lists the packages of a root file system as SPDX 2.3 in JSON, from its dpkg database.

    python3 deploy/images/sbom.py ROOT.tar OUT.spdx.json --name NAME --created SECONDS
    python3 deploy/images/sbom.py --check OUT.spdx.json ROOT.tar     every package of the root is there, and nothing else
"""

import hashlib
import json
import re
import sys
import tarfile
import time
import urllib.parse


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


def document(root, name, created):
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
    listed = {(one["name"], one["versionInfo"]) for one in found["packages"] if "versionInfo" in one}
    there = {(one["Package"], one["Version"]) for one in installed(root)}
    for name, version in sorted(listed ^ there):
        print(f"{name} {version} is only in the {'list' if (name, version) in listed else 'root'}")
    identities = [one["SPDXID"] for one in found["packages"]]
    related = {one["relatedSpdxElement"] for one in found["relationships"]}
    if len(set(identities)) != len(identities) or set(identities) != related:
        sys.exit("identifiers are not unique, or a package is in no relationship")
    if listed != there or ("nibble" not in {name for name, _ in there}):
        sys.exit(1)
    print(f"sbom: {len(there)} packages")


def main():
    arguments = sys.argv[1:]
    if len(arguments) == 3 and arguments[0] == "--check":
        check(arguments[1], arguments[2])
    elif len(arguments) == 6 and arguments[2] == "--name" and arguments[4] == "--created":
        with open(arguments[1], "w", encoding="utf-8") as file:
            json.dump(document(arguments[0], arguments[3], int(arguments[5])), file, indent=1, sort_keys=True)
            file.write("\n")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
