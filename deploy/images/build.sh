#!/usr/bin/env bash
# Makes the image of the programs without a registry: Debian's packages by mmdebstrap, ours by deploy/debian/build.sh, packed as an OCI image
# layout, with a list of its packages in SPDX.
#   deploy/images/build.sh [--cuda] [DIRECTORY]      default: dist; makes nibble-VERSION-cpu.tar, .spdx.json and .root.tar there
#   --cuda    makes nibble-VERSION-cuda: the CUDA code, and the libraries that it loads, cuBLASLt and NCCL, from this machine's toolkit. The
#             driver's libraries are the node's; container runtimes with NVIDIA's hook mount them.
# Needs root, or mmdebstrap's unshare mode. NIBBLE_MIRROR names another mirror of Debian, such as a snapshot, which makes later builds use
# the same packages; times are SOURCE_DATE_EPOCH, by default that of the last commit.
set -euo pipefail
cd "$(dirname "$0")/../.."
source third_party/debian/install.sh
kind=cpu
[[ ${1:-} == --cuda ]] && kind=cuda && shift
out=${1:-dist}
version=$(sed -n 's/.*kVersion\[\] = "\(.*\)";/\1/p' common/version.h)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export PYTHONDONTWRITEBYTECODE=1
name=nibble-$version-$kind
package=$out/nibble_${version}_amd64.deb
package_flags=() hooks=() listed=() settings=()
if [[ $kind == cuda ]]; then
  home=$(cuda_home) || { echo "error: --cuda needs CUDA's toolkit; it is searched in CUDA_HOME, beside nvcc and in /usr/local/cuda" >&2 && exit 1; }
  package=$out/nibble_${version}+cuda_amd64.deb
  package_flags=(--cuda)
  settings=(--env NVIDIA_VISIBLE_DEVICES=all --env 'NVIDIA_DRIVER_CAPABILITIES=compute,utility')
  # header_version HEADER PREFIX: as 2.28.9, from NCCL_MAJOR and so on.
  header_version() { sed -nE "s/^#define $2(MAJOR|MINOR|PATCH) +([0-9]+).*/\2/p" "$1" | paste -sd.; }
  # add_library FILE VERSION: into the root and the list. Its name in the root is the one that programs load.
  add_library() {
    hooks+=(--customize-hook="install -m 644 '$1' \"\$1/usr/lib/x86_64-linux-gnu/${1##*/}\"")
    listed+=(--library "./usr/lib/x86_64-linux-gnu/${1##*/}=$2")
  }
  # found PATTERN...: the first path that exists.
  found() {
    local path
    for path in "$@"; do [[ -e $path ]] && echo "$path" && return 0; done
    echo "error: none of $* exists" >&2 && return 1
  }
  header=$(found "$home"/{targets/x86_64-linux/,}include/cublas_api.h)
  library_version=$(header_version "$header" CUBLAS_VER_)
  library=$(found "$home"/{targets/x86_64-linux/lib,lib64}/libcublasLt.so."${library_version%%.*}")
  add_library "$library" "$library_version"
  header=$(found "$home"/{targets/x86_64-linux/,}include/nccl.h /usr/include/nccl.h)
  library_version=$(header_version "$header" NCCL_)
  library=$(found "$home"/{targets/x86_64-linux/lib,lib64,lib}/libnccl.so.2 /usr/lib/x86_64-linux-gnu/libnccl.so.2)
  add_library "$library" "$library_version"
  # shellcheck disable=SC2016  # $1 is the root's path
  hooks+=(--customize-hook='chroot "$1" ldconfig' --customize-hook='rm -f "$1/var/cache/ldconfig/aux-cache"')
fi

install_packages mmdebstrap python3 xz-utils
deploy/debian/build.sh "${package_flags[@]}" "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# apt reads local packages from a repository.
mkdir "$work/ours"
cp "$package" "$work/ours/"
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
  "${hooks[@]}" \
  --customize-hook='mkdir -p "$1/var/lib/nibble" "$1/corpus" && chown 10001:10001 "$1/var/lib/nibble"' \
  --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/var/log/* "$1"/etc/hostname "$1"/etc/resolv.conf "$1"/etc/passwd- "$1"/etc/group- "$1"/etc/shadow- "$1"/etc/gshadow- "$1"/etc/subuid- "$1"/etc/subgid-' \
  --customize-hook='rm "$1/etc/apt/sources.list.d/ours.list"' \
  bookworm "$out/$name.root.tar" ${NIBBLE_MIRROR:+"$NIBBLE_MIRROR"} 2>&1 | tail -n 20
python3 deploy/images/sbom.py "$out/$name.root.tar" "$out/$name.spdx.json" --name "$name" --created "$SOURCE_DATE_EPOCH" "${listed[@]}"
python3 deploy/images/sbom.py --check "$out/$name.spdx.json" "$out/$name.root.tar"
python3 deploy/images/oci_layout.py "$out/$name.root.tar" "$out/$name.tar" --tag "localhost/nibble:$version-$kind" --created "$SOURCE_DATE_EPOCH" \
  --version "$version" "${settings[@]}"
