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
# --accept: flags that these programs get with the security and the configuration files of the cluster.
"$python" $here/lint.py $here/golden nibble-coordinator="$work/coordinator" nibble-worker="$work/worker" \
  --accept config tls-cert tls-key tls-ca bootstrap-token-file || fail "lint"
"$python" $here/lint_test.py $here/golden || fail "lint's own test"

# The hooks call verbs and flags that exist.
for hook in $here/base/hooks/*.sh; do
  sh -n "$hook" || fail "$hook"
done
for verb in drain describe uncordon; do
  "$3" worker $verb --help | grep -q -- '--timeout' || fail "nibble worker $verb has no --timeout"
done
"$3" worker drain --help | grep -q -- '--reason' || fail "nibble worker drain has no --reason"

((failures == 0)) || exit 1
echo "the manifests are as they should be"
