// The CUDA backend, including launch logic and kernels, on the host's emulation of a GPU, against
// the CPU backend: small shapes of every kind, zero tolerance.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/check_cases.h"
#include "kernels/cuda/cuda_backend.h"

namespace nibble {
namespace {

class EmulatedBackend : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cpu = CpuBackend::Create({.threads = 1, .isa = {}});
    ASSERT_TRUE(cpu.ok());
    cpu_ = *std::move(cpu);
    auto cuda = CudaBackend::Create(0);
    ASSERT_TRUE(cuda.ok());
    cuda_ = *std::move(cuda);
  }

  std::unique_ptr<CpuBackend> cpu_;
  std::unique_ptr<CudaBackend> cuda_;
};

TEST_F(EmulatedBackend, MatchesTheCpuBackendInRandomCases) {
  Checker checker(*cpu_, *cuda_);
  // A few that span more than one band of tiles.
  const char* const text = std::getenv("NIBBLE_EMULATED_CASES");
  const uint64_t small = text != nullptr ? std::strtoull(text, nullptr, 10) : 100;
  for (uint64_t seed = 1; seed <= small + small / 25; ++seed) {
    const absl::Status status = checker.Run(RandomCase(seed, seed <= small ? 330 : 2000));
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(checker.differences(), 0);
  for (const auto& [path, tally] : checker.by_path()) {
    std::printf("%-70s %4ld cases, %ld elements\n", path.c_str(), static_cast<long>(tally.cases),
                static_cast<long>(tally.elements));
  }
}

TEST_F(EmulatedBackend, RefusesFormatsAndHadamardSizesByName) {
  const std::vector<uint16_t> x(64 * 64);
  const auto quantize = [&](const OperandSpec& spec) {
    QuantizedTensor::Options options;
    options.spec = spec;
    options.rows = options.cols = 64;
    QuantizedTensor out = *QuantizedTensor::Create(cuda_->memory(), options);
    QuantizeRequest request;
    request.x = ConstMatrix::OfBf16(x.data(), 64, 64);
    request.row.out = &out;
    return cuda_->Quantize(request);
  };
  EXPECT_EQ(quantize(OperandSpec::Of(Format::kMxfp4)).message(),
            "format mxfp4 has no CUDA kernel yet; it runs on the cpu backend");
  OperandSpec spec;
  spec.hadamard.size = 32;
  const absl::Status status = quantize(spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("Hadamard size 32"), absl::string_view::npos);
}

TEST_F(EmulatedBackend, WritesTheHeadOfAnEmptyMatrix) {
  QuantizedTensor::Options options;
  options.cols = 32;
  QuantizedTensor out = *QuantizedTensor::Create(cuda_->memory(), options);
  QuantizeRequest request;
  request.x = {nullptr, DType::kBf16, 0, 32, 32};
  request.row.out = &out;
  ASSERT_TRUE(cuda_->Quantize(request).ok());
  const absl::StatusOr<QuantHead> head = cuda_->ReadHead(out);
  ASSERT_TRUE(head.ok());
  EXPECT_EQ(head->amax, 0.0f);
  EXPECT_EQ(head->non_finite, 0u);
  EXPECT_TRUE(head->stats == StatSums());
}

}  // namespace
}  // namespace nibble
