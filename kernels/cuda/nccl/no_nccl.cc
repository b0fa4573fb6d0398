// The NCCL of a build without a CUDA toolkit or without NCCL's header.
#include "kernels/cuda/nccl/nccl_group.h"

namespace nibble {
namespace {

absl::Status BuiltWithoutNccl() {
  return absl::UnimplementedError(
      "NCCL: this program was built without it; build it where nvcc and nccl.h are found (in "
      "CUDA_HOME or /usr/include)");
}

}  // namespace

absl::StatusOr<int> NcclVersion() { return BuiltWithoutNccl(); }
absl::StatusOr<NcclId> NewNcclId() { return BuiltWithoutNccl(); }
absl::StatusOr<std::unique_ptr<RankGroup>> ConnectNccl(Backend&, NcclOptions) {
  return BuiltWithoutNccl();
}
absl::StatusOr<PeerCopies> ConnectCopies(Backend&, int, int, const WordExchange&) {
  return BuiltWithoutNccl();
}

}  // namespace nibble
