// Checks the GEMM engine on a card, then measures it; see gemm_check.h.
//
//   gemm_check [check | few | time]
//
// few: some of the checks. Without an argument all of the checks and the times. Exits with 1 on any
// failure, 2 if there is no card.
#include <cstdio>
#include <cstring>
#include <vector>

#include "common/status_macros.h"
#include "kernels/cuda/gemm/gemm_check.h"

namespace nibble {
namespace {

// Leaves NaN in the memory that later allocations get: what a library's kernel should have written
// and has not then shows in a result. initcheck cannot show it, as it does not see bulk stores.
absl::Status PoisonMemory(CudaBackend& cuda) {
  std::vector<Buffer> all;
  for (const size_t mebibytes : {1, 2, 8, 64, 512}) {
    for (size_t i = 0; i < 256 / mebibytes + 1; ++i) {
      NIBBLE_ASSIGN_OR_RETURN(Buffer buffer, cuda.memory().Allocate(mebibytes << 20));
      NIBBLE_RETURN_IF_ERROR(cuda.memory().Fill(buffer.data(), 0xff, buffer.bytes()));
      all.push_back(std::move(buffer));
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  const auto wants = [&](const char* part) { return argc < 2 || std::strcmp(argv[1], part) == 0; };
  auto cuda = nibble::CudaBackend::Create(0);
  if (!cuda.ok()) {
    std::fprintf(stderr, "gemm_check: %s\n", cuda.status().ToString().c_str());
    return 2;
  }
  if (const absl::Status poisoned = nibble::PoisonMemory(**cuda); !poisoned.ok()) {
    std::fprintf(stderr, "gemm_check: %s\n", poisoned.ToString().c_str());
    return 2;
  }
  nibble::LayerCheck check(**cuda);
  if (wants("check")) nibble::CheckGemms(check);
  if (argc == 2 && std::strcmp(argv[1], "few") == 0) nibble::CheckGemms(check, /*few=*/true);
  if (wants("time")) {
    nibble::TimeGemms(check);
    // Dense BF16 of an H200 by its data sheet, and a measured copy.
    check.PrintTimes(4.26e12, 989e12);
  }
  std::printf("%ld checks, %ld failures\n", static_cast<long>(check.checks()),
              static_cast<long>(check.failures()));
  return check.failures() == 0 ? 0 : 1;
}
