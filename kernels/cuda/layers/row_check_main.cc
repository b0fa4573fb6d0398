// Checks and times the operations on rows on a card: exits 1 if a check fails.
#include <cstdio>
#include <cstring>
#include <memory>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/layers/row_check.h"

namespace nibble {
namespace {

int Main(bool times) {
  absl::StatusOr<std::unique_ptr<CudaBackend>> cuda = CudaBackend::Create(0);
  if (!cuda.ok()) {
    std::fprintf(stderr, "row_check: %s\n", cuda.status().ToString().c_str());
    return 2;
  }
  LayerCheck check(**cuda);
  const struct {
    const char* name;
    void (*run)(LayerCheck&);
  } groups[] = {{"norms", CheckNorms},
                {"element-wise", CheckElementwise},
                {"exact", CheckExact},
                {"tokens", CheckTokens}};
  for (const auto& group : groups) {
    const int64_t before = check.failures();
    group.run(check);
    std::printf("%-14s %s\n", group.name, check.failures() == before ? "ok" : "FAILED");
    std::fflush(stdout);
  }
  if (times) {
    TimeRows(check);
    check.PrintTimes(4.26e12, 790e12);
  }
  std::printf("%s: %lld checks, %lld failures\n", (*cuda)->Name().c_str(),
              static_cast<long long>(check.checks()), static_cast<long long>(check.failures()));
  return check.failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace nibble

// --small: no measurements.
int main(int argc, char** argv) {
  return nibble::Main(argc < 2 || std::strcmp(argv[1], "--small") != 0);
}
