# Sourced by test.sh, quickstart.sh, bundle.sh and tests/interop/interop.sh: installs missing Debian
# packages and prints which; a second run installs nothing.

# Installs the packages of packages.txt and those given as arguments.
install_packages() {
  local list missing=() package sudo=()
  list="$(dirname "${BASH_SOURCE[0]}")/packages.txt"
  while read -r package; do
    [[ -z $package || $package == \#* ]] && continue
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done < <(cat "$list" && printf '%s\n' "$@")
  if ((${#missing[@]} == 0)); then
    echo "packages: all installed"
    return 0
  fi
  echo "packages: installing ${missing[*]}"
  if ((EUID != 0)); then
    command -v sudo >/dev/null || {
      echo "error: not root and no sudo; as root: apt-get install ${missing[*]}" >&2
      return 1
    }
    sudo=(sudo)
  fi
  local log
  log="$(mktemp)"
  if ! { "${sudo[@]}" apt-get update &&
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "error: apt-get failed; its output is in $log" >&2
    return 1
  fi
  rm -f "$log"
}

# Prints whether the CUDA code is compiled.
report_cuda() {
  local nvcc=""
  if [[ ${NIBBLE_CUDA:-} != 0 ]]; then
    for home in "${CUDA_HOME:-}" "$(dirname "$(dirname "$(command -v nvcc || echo /none/none/none)")")" /usr/local/cuda; do
      [[ -n $home && -x $home/bin/nvcc ]] && nvcc=$home/bin/nvcc && break
    done
  fi
  if [[ -n $nvcc ]]; then
    echo "CUDA: $nvcc compiles the kernels; running them needs a GPU (see bundle.sh)"
  else
    echo "CUDA: no toolkit found; kernels/cuda and its dependents are skipped, everything else is built and tested"
  fi
}

# A disk cache outside the tree, so that fresh clones build warm.
bazel_flags() {
  echo "--disk_cache=${NIBBLE_DISK_CACHE:-$HOME/.cache/nibble/bazel}"
}

# The programs that ./quickstart.sh runs.
quickstart_targets() {
  echo //client:nibble //server:nibble-coordinator //worker/agent:nibble-worker //worker/trainer/loop:nibble-trainer
}
