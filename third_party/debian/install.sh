# Sourced by the scripts that need Debian packages, such as test.sh and quickstart.sh: installs missing ones and
# prints which; a second run installs nothing.

# Installs packages with apt-get, as root or with sudo. Waits up to ten minutes where another program, such as a new
# machine's automatic updates, holds apt's locks.
apt_install() {
  local sudo=() log said=0 deadline=$((SECONDS + 600))
  if ((EUID != 0)); then
    command -v sudo >/dev/null || {
      echo "error: not root and no sudo; as root: apt-get install $*" >&2
      return 1
    }
    sudo=(sudo)
  fi
  log="$(mktemp)"
  until "${sudo[@]}" env LC_ALL=C apt-get update >"$log" 2>&1 &&
    "${sudo[@]}" env LC_ALL=C DEBIAN_FRONTEND=noninteractive \
      apt-get install -y --no-install-recommends "$@" >"$log" 2>&1; do
    if ! grep -q '^E: Could not get lock' "$log" || ((SECONDS >= deadline)); then
      tail -n 20 "$log" >&2
      echo "error: apt-get could not install $*; its output is in $log" >&2
      return 1
    fi
    ((said)) || echo "packages: waiting for another program that holds apt's locks"
    said=1
    sleep 2
  done
  rm -f "$log"
}

# Installs the packages of packages.txt and those given as arguments, where they are missing.
install_packages() {
  local list missing=() package
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
  apt_install "${missing[@]}"
}

# Prints the directory of CUDA's toolkit, searched as third_party/cuda/toolkit.bzl does; fails if there is none.
cuda_home() {
  local home
  [[ ${NIBBLE_CUDA:-} != 0 ]] || return 1
  for home in "${CUDA_HOME:-}" "$(dirname "$(dirname "$(command -v nvcc || echo /none/none/none)")")" /usr/local/cuda; do
    [[ -n $home && -x $home/bin/nvcc ]] && echo "$home" && return 0
  done
  return 1
}

# Prints whether the CUDA code is compiled.
report_cuda() {
  local home
  if home=$(cuda_home); then
    echo "CUDA: $home/bin/nvcc compiles the kernels; running them needs a GPU (see bundle.sh)"
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
