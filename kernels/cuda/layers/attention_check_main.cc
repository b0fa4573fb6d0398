// Checks and times attention on a card: exits 1 if a check fails.
#include <cstdio>
#include <memory>
#include <string_view>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/layers/attention_check.h"

namespace nibble {
namespace {

constexpr const char* kUsage =
    "usage: attention_check [--path rows|simple|mma|hopper] [--small] [--no-check] [--no-time]\n";

int Main(int argc, char** argv) {
  AttentionCheckOptions options;
  bool checks = true, times = true;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--path" && i + 1 < argc) {
      options.path = argv[++i];
    } else if (argument == "--small") {
      options.large = times = false;
    } else if (argument == "--no-check") {
      checks = false;
    } else if (argument == "--no-time") {
      times = false;
    } else {
      std::fputs(kUsage, stderr);
      return 2;
    }
  }
  absl::StatusOr<std::unique_ptr<CudaBackend>> cuda = CudaBackend::Create(0);
  if (!cuda.ok()) {
    std::fprintf(stderr, "attention_check: %s\n", cuda.status().ToString().c_str());
    return 2;
  }
  LayerCheck check(**cuda);
  if (checks) CheckAttention(check, options);
  std::printf("%s: %ld checks, %ld failures\n", (*cuda)->Name().c_str(),
              static_cast<long>(check.checks()), static_cast<long>(check.failures()));
  std::fflush(stdout);
  if (times) {
    TimeAttention(check, options);
    constexpr double kGemmFlops = 740e12;  // BF16, measured
    check.PrintTimes(check.CopyRate(), kGemmFlops);
  }
  return check.failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) { return nibble::Main(argc, argv); }
