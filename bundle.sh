#!/bin/bash
# Makes ./bundle: programs for a GPU node that has the driver, CUDA and glibc, and nothing else installed.
#
#   ./bundle.sh                builds and bundles the check program
#   ./bundle.sh PROGRAM...     bundles these programs, which must be built
#
# On the node, `bundle/gpu-check.sh` compares the CUDA backend with the CPU backend and measures it.
set -euo pipefail
cd "$(dirname "$0")"
source third_party/debian/install.sh

if [ $# -eq 0 ]; then
  install_packages
  report_cuda
  bazel build "$(bazel_flags)" //kernels/cuda:gpu_check
  set -- bazel-bin/kernels/cuda/gpu_check
fi

out=bundle
rm -rf "$out"
mkdir -p "$out/bin" "$out/lib" "$out/vectors"
cp testdata/vectors/*.md "$out/vectors/"

# Libraries of glibc and CUDA are the node's; all others are bundled.
on_node='^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libutil|libanl|libmvec|libnsl)\b|^lib(cuda|cudart|cublas|cublasLt|cudnn|nccl|nvrtc|nvidia|nvJitLink|cufft|curand|cusparse|cusolver)'

for program in "$@"; do
  name=$(basename "$program")
  install -m 755 "$program" "$out/bin/$name"
  strip "$out/bin/$name"
  missing=$(ldd "$program" | grep 'not found' | grep -vE '^\s*lib(cuda|nccl|cudnn)' || true)
  if [ -n "$missing" ]; then
    echo "bundle: $program needs libraries that are not installed:" >&2
    echo "$missing" >&2
    exit 1
  fi
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | while read -r soname path; do
    if [[ ! $soname =~ $on_node ]]; then
      install -m 644 "$(readlink -f "$path")" "$out/lib/$soname"
    fi
  done
done

cat > "$out/gpu-check.sh" <<'SCRIPT'
#!/bin/bash
# Compares the CUDA backend with the worked vectors and, bit for bit, with the CPU backend; then measures its
# speed. Arguments are passed to gpu_check.
here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH="$here/lib:/usr/local/cuda/targets/x86_64-linux/lib:/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
vectors=()
for file in "$here"/vectors/*.md; do vectors+=(--vectors "$file"); done
exec "$here/bin/gpu_check" "${vectors[@]}" "$@"
SCRIPT
chmod 755 "$out/gpu-check.sh"
du -sh "$out" | awk '{ print "bundle: " $1 " in " $2 }'
