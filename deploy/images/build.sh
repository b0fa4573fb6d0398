#!/usr/bin/env bash
# Makes the image of the programs without a registry: Debian's packages by mmdebstrap, ours by deploy/debian/build.sh, packed as an OCI image
# layout, with a list of its packages in SPDX.
#   deploy/images/build.sh [DIRECTORY]      default: dist; makes nibble-VERSION-cpu.tar, .spdx.json and .root.tar there
# Needs root, or mmdebstrap's unshare mode. NIBBLE_MIRROR names another mirror of Debian, such as a snapshot, which makes later builds use
# the same packages; times are SOURCE_DATE_EPOCH, by default that of the last commit.
set -euo pipefail
cd "$(dirname "$0")/../.."
source third_party/debian/install.sh
out=${1:-dist}
version=$(sed -n 's/.*kVersion\[\] = "\(.*\)";/\1/p' common/version.h)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export PYTHONDONTWRITEBYTECODE=1
name=nibble-$version-cpu

install_packages mmdebstrap python3 xz-utils
deploy/debian/build.sh "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# apt reads local packages from a repository.
mkdir "$work/ours"
cp "$out/nibble_${version}_amd64.deb" "$work/ours/"
(cd "$work/ours" && dpkg-scanpackages --multiversion . >Packages 2>"$work/scan.log") || { cat "$work/scan.log" >&2 && exit 1; }
chmod -R a+rX "$work"

# The user exists before the package is configured, so that it has the number that the manifests name.
# shellcheck disable=SC2016  # $1 is the root's path, in the hooks
mmdebstrap --quiet --variant=essential --format=tar --include=nibble,ca-certificates \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --setup-hook="echo 'deb [trusted=yes] copy:$work/ours ./' >\"\$1/etc/apt/sources.list.d/ours.list\"" \
  --aptopt='APT::Install-Recommends "false"' \
  --essential-hook='echo nibble:x:10001: >>"$1/etc/group"' \
  --essential-hook='echo "nibble:*:10001:10001::/nonexistent:/usr/sbin/nologin" >>"$1/etc/passwd"' \
  --customize-hook='mkdir -p "$1/var/lib/nibble" "$1/corpus" && chown 10001:10001 "$1/var/lib/nibble"' \
  --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/var/log/* "$1"/etc/hostname "$1"/etc/resolv.conf "$1"/etc/passwd- "$1"/etc/group- "$1"/etc/shadow- "$1"/etc/gshadow- "$1"/etc/subuid- "$1"/etc/subgid-' \
  --customize-hook='rm "$1/etc/apt/sources.list.d/ours.list"' \
  bookworm "$out/$name.root.tar" ${NIBBLE_MIRROR:+"$NIBBLE_MIRROR"} 2>&1 | tail -n 20
python3 deploy/images/sbom.py "$out/$name.root.tar" "$out/$name.spdx.json" --name "$name" --created "$SOURCE_DATE_EPOCH"
python3 deploy/images/sbom.py --check "$out/$name.spdx.json" "$out/$name.root.tar"
python3 deploy/images/oci_layout.py "$out/$name.root.tar" "$out/$name.tar" --tag "localhost/nibble:$version-cpu" --created "$SOURCE_DATE_EPOCH" --version "$version"
