# Sourced by test.sh and quickstart.sh: installs the Debian packages that are missing, and says which.
# A second run finds nothing missing and installs nothing.

# Those of packages.txt, and those named besides.
install_packages() {
  local list missing=() package sudo=()
  list="$(dirname "${BASH_SOURCE[0]}")/packages.txt"
  while read -r package; do
    [[ -z $package || $package == \#* ]] && continue
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done < <(cat "$list" && printf '%s\n' "$@")
  if ((${#missing[@]} == 0)); then
    echo "packages: all there"
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

# One line on what becomes of the CUDA code.
report_cuda() {
  local nvcc=""
  if [[ ${NIBBLE_CUDA:-} != 0 ]]; then
    for home in "${CUDA_HOME:-}" "$(dirname "$(dirname "$(command -v nvcc || echo /none/none/none)")")" /usr/local/cuda; do
      [[ -n $home && -x $home/bin/nvcc ]] && nvcc=$home/bin/nvcc && break
    done
  fi
  if [[ -n $nvcc ]]; then
    echo "CUDA: $nvcc compiles the kernels for sm_90a and sm_100a; running them needs a GPU (see bundle.sh)"
  else
    echo "CUDA: no toolkit found, so kernels/cuda and what needs it is left out; all else builds and tests"
  fi
}

# Objects outlive a clone: a fresh one builds warm.
bazel_flags() {
  echo "--disk_cache=${NIBBLE_DISK_CACHE:-$HOME/.cache/nibble/bazel}"
}

# The programs that ./quickstart.sh runs.
quickstart_targets() {
  echo //client:nibble //server:nibble-coordinator //worker/agent:nibble-worker //worker/trainer/loop:nibble-trainer
}
