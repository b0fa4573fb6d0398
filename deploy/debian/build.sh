#!/usr/bin/env bash
# Makes nibble_VERSION_amd64.deb: the programs, systemd units, shell completion, man pages made from the programs' own help, and documents.sh.
#   deploy/debian/build.sh [--cuda] [DIRECTORY]    DIRECTORY: where it goes; default: dist
#   --cuda    with the CUDA code, which needs a toolkit; the package then finds CUDA's libraries where the machine has them
# The same sources give the same bytes: times are SOURCE_DATE_EPOCH, by default that of the last commit. Programs report NIBBLE_COMMIT, by
# default what git describes.
set -euo pipefail
cd "$(dirname "$0")/../.."
source third_party/debian/install.sh
cuda=0
[[ ${1:-} == --cuda ]] && cuda=1 && shift
out=${1:-dist}
version=$(sed -n 's/.*kVersion\[\] = "\(.*\)";/\1/p' common/version.h)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
commit=${NIBBLE_COMMIT:-$(git describe --always --dirty --exclude '*' --abbrev=12)}
export PYTHONDONTWRITEBYTECODE=1

install_packages binutils dpkg-dev python3
flags=("$(bazel_flags)" "--define=COMMIT=$commit")
if ((cuda)); then
  report_cuda
  flags+=("--//third_party/cuda:targets=90a,100a")
  version+=+cuda
else
  export NIBBLE_CUDA=0
fi
programs=(client/nibble server/nibble-coordinator worker/agent/nibble-worker worker/agent/nibble-export worker/trainer/loop/nibble-trainer)
targets=()
for program in "${programs[@]}"; do targets+=("//${program%/*}:${program##*/}"); done
log=$(mktemp)
bazel build "${flags[@]}" "${targets[@]}" >"$log" 2>&1 || { tail -n 40 "$log" && exit 1; }
rm "$log"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
umask 022
install -d "$root"/{DEBIAN,usr/bin,lib/systemd/system,etc/default,usr/share/man} \
  "$root"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
for program in "${programs[@]}"; do
  install -m 755 "bazel-bin/$program" "$root/usr/bin/"
  strip "$root/usr/bin/${program##*/}"
done
install -m 644 deploy/systemd/*.service "$root/lib/systemd/system/"
for name in coordinator worker; do install -m 644 deploy/systemd/nibble-$name.default "$root/etc/default/nibble-$name"; done
deploy/debian/documents.sh "$root"
install -m 644 deploy/debian/copyright "$root/usr/share/doc/nibble/copyright"
install -D -m 644 deploy/debian/lintian-overrides "$root/usr/share/lintian/overrides/nibble"
maintainer="The Nibble developers <nibble@localhost>"
gzip -9n >"$root/usr/share/doc/nibble/changelog.gz" <<CHANGELOG
nibble ($version) unstable; urgency=medium

  * Built from commit $commit.

 -- $maintainer  $(date -uR -d "@$SOURCE_DATE_EPOCH")
CHANGELOG
nibble=$root/usr/bin/nibble
"$nibble" completion bash >"$root/usr/share/bash-completion/completions/nibble"
"$nibble" completion zsh >"$root/usr/share/zsh/vendor-completions/_nibble"
"$nibble" completion fish >"$root/usr/share/fish/vendor_completions.d/nibble.fish"
python3 deploy/debian/man_pages.py "$root/usr/bin" "$root/usr/share/man" "$version" "$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)"
find "$root/usr/share/man" -type f -exec gzip -9n {} +

# What the programs are linked with, as packages and their least versions.
mkdir -p "$work/debian"
printf 'Source: nibble\n\nPackage: nibble\nArchitecture: any\n' >"$work/debian/control"
more=()
((cuda)) && more=(--ignore-missing-info)
depends=$(cd "$work" && dpkg-shlibdeps -O "${more[@]}" "$root"/usr/bin/* 2>"$work/shlibdeps.log") || {
  cat "$work/shlibdeps.log" >&2
  exit 1
}

cat >"$root/DEBIAN/control" <<CONTROL
Package: nibble
Version: $version
Architecture: amd64
Maintainer: $maintainer
Section: science
Priority: optional
Installed-Size: $(du -sk --apparent-size "$root" | cut -f1)
Depends: ${depends#shlibs:Depends=}, elfutils, passwd
Description: pretrains language models in 4-bit floating point
 A coordinator, worker daemons and a trainer for NVFP4, MXFP4 and FP8 recipes
 that can be changed while a job runs, and the command line.
CONTROL
printf '/etc/default/nibble-coordinator\n/etc/default/nibble-worker\n' >"$root/DEBIAN/conffiles"
install -m 755 deploy/debian/{postinst,prerm,postrm} "$root/DEBIAN/"
(cd "$root" && find usr lib etc -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

mkdir -p "$out"
package=$out/nibble_${version}_amd64.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
echo "package: $package, $(du -h --apparent-size "$package" | cut -f1)"
