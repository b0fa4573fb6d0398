#!/usr/bin/env bash
# The golden files are of the present inputs; they keep every practice that lint.py knows; lint.py finds faults that are put in; the flags
# in the manifests are flags of the programs. deploy/kubernetes/test.sh also renders the overlays and checks them against Kubernetes' schemas.
#   kubernetes_test.sh COORDINATOR WORKER CLI     the programs
set -uo pipefail
export PYTHONDONTWRITEBYTECODE=1
here=deploy/kubernetes
failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

python=
for one in python3 /usr/bin/python3; do
  "$one" -c 'import yaml' 2>/dev/null && python=$one && break
done
[[ -n $python ]] || {
  echo "python3 has no module yaml; install Debian's package python3-yaml"
  exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" --help >"$work/coordinator" || fail "$1 --help"
"$2" --help >"$work/worker" || fail "$2 --help"
"$python" $here/render.py --inputs || fail "golden files are stale"
"$python" $here/lint.py $here/golden nibble-coordinator="$work/coordinator" nibble-worker="$work/worker" || fail "lint"
"$python" $here/lint_test.py $here/golden || fail "lint's own test"

# The hooks call verbs and flags that exist.
for hook in $here/base/hooks/*.sh; do
  sh -n "$hook" || fail "$hook"
done
for verb in drain describe uncordon; do
  "$3" worker $verb --help | grep -q -- '--timeout' || fail "nibble worker $verb has no --timeout"
done
"$3" worker drain --help | grep -q -- '--reason' || fail "nibble worker drain has no --reason"

# Images are pinned by the digests of their files.
mkdir "$work/root" "$work/gpu"
cp $here/overlays/gpu/kustomization.yaml "$work/gpu/"
tar cf "$work/root.tar" -C "$work" ./root
for kind in cpu cuda; do
  python3 deploy/images/oci_layout.py "$work/root.tar" "$work/$kind.tar" --tag localhost/nibble:1.2.3-$kind --created 0 --version 1.2.3 --env KIND=$kind |
    grep -o 'sha256:[0-9a-f]*' >"$work/$kind"
done
python3 $here/pin_images.py --overlay "$work/gpu" --name registry.example/nibble "$work/cpu.tar" "$work/cuda.tar" >"$work/pinned" || fail "pin_images.py"
for image in coordinator:cpu worker:cuda; do
  kind=${image#*:}
  grep -q "{name: nibble-${image%:*}, newName: registry.example/nibble, newTag: 1.2.3-$kind, digest: '$(cat "$work/$kind")'}" \
    "$work/gpu/kustomization.yaml" || fail "pin_images.py: $(cat "$work/gpu/kustomization.yaml")"
done
python3 $here/pin_images.py --overlay $here/overlays/cpu-dev "$work/cpu.tar" "$work/cuda.tar" 2>/dev/null && fail "an overlay without digests is pinned"

((failures == 0)) || exit 1
echo "the manifests are as they should be"
