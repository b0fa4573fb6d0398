#!/usr/bin/env bash
# Compares Nibble with the transformers of PyPI, live and in both directions (live_check.py), its
# YAML with what PyYAML reads (yaml_check.py), and its coordinator's API with what gRPC's Python
# makes of it (foreign_client.py), in a Python environment of its own:
#   tests/interop/interop.sh
# The environment is made once, in ${XDG_CACHE_HOME:-~/.cache}/nibble, and again when
# requirements.txt changes. PyPI's torch brings CUDA along (some 5 GB); pip's own settings
# (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL) choose an index whose torch does not.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/interop
source third_party/debian/install.sh

install_packages python3-venv
made_of="$(sha256sum $here/requirements.txt | cut -c1-12)"
environment="${XDG_CACHE_HOME:-$HOME/.cache}/nibble/interop-$made_of"
if [[ ! -e $environment/complete ]]; then
  echo "interop: making $environment"
  rm -rf "$environment"
  mkdir -p "$(dirname "$environment")"
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check -r $here/requirements.txt
  touch "$environment/complete"
fi

bazel build "$(bazel_flags)" //$here:hf-logits //$here:export-random //$here:export-tokenizer \
  //$here:encode-texts //$here:yaml-of-json //client:nibble //server:nibble-coordinator
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
PYTHONDONTWRITEBYTECODE=1 "$environment/bin/python" $here/live_check.py \
  bazel-bin/$here/hf-logits bazel-bin/$here/export-random bazel-bin/$here/export-tokenizer \
  bazel-bin/$here/encode-texts "$work"
PYTHONDONTWRITEBYTECODE=1 "$environment/bin/python" $here/yaml_check.py \
  bazel-bin/$here/yaml-of-json bazel-bin/client/nibble
PYTHONDONTWRITEBYTECODE=1 "$environment/bin/python" $here/foreign_client.py \
  bazel-bin/server/nibble-coordinator "$work"
