// Effects of quantisation on distributions: figures that distinguish a correct quantiser from a
// nearly correct one without training.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/formats/bfloat16.h"

namespace nibble {
namespace {

class Quantiser {
 public:
  Quantiser(const OperandSpec& spec, int rows, int cols,
            Orientation orientation = Orientation::kRow)
      : backend_(*CpuBackend::Create({.threads = 1, .isa = cpu::SupportedIsas().back()})),
        rows_(rows),
        cols_(cols),
        out_(*QuantizedTensor::Create(backend_->memory(), {.spec = spec,
                                                           .orientation = orientation,
                                                           .rows = rows,
                                                           .cols = cols,
                                                           .packed = false,
                                                           .emulated = EmulatedLayout::kSource})) {}

  // code · block scale of every element, in the source's layout.
  const uint16_t* Run(const std::vector<float>& x, const float* amax, const RandomStream& random) {
    QuantizeRequest request;
    request.x = ConstMatrix::Of(x.data(), rows_, cols_);
    CopyRequest& copy = out_.is_column() ? request.column : request.row;
    copy.out = &out_;
    copy.amax = amax;
    copy.random = random;
    const absl::Status status = backend_->Quantize(request);
    EXPECT_TRUE(status.ok()) << status;
    return out_.emulated();
  }
  double amax() const { return out_.head()->amax; }

 private:
  std::unique_ptr<CpuBackend> backend_;
  int rows_, cols_;
  QuantizedTensor out_;
};

// ‖x − x̂‖² / ‖x‖² of 4M numbers of N(0,1). Their amax, about 5.2, determines where in the binade
// of E4M3 the block scales are, and so changes the error by a few parts in a thousand; other sizes
// have other maxima.
double RelativeMse(Format format, BlockShape block) {
  constexpr int kSide = 2048;
  OperandSpec spec = OperandSpec::Of(format);
  spec.block = block;
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(kSide * kSide);
  for (float& v : x) v = normal(random);
  Quantiser quantiser(spec, kSide, kSide);
  const uint16_t* emulated = quantiser.Run(x, nullptr, {});
  const double scale = Info(format).tensor_scale ? quantiser.amax() / 2688 : 1;
  double error = 0;
  double square = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = x[i] - DecodeBf16(emulated[i]) * scale;
    error += d * d;
    square += static_cast<double>(x[i]) * x[i];
  }
  return error / square;
}

TEST(QuantisationError, OfNormalNumbersInNvfp4Is906Em5) {
  EXPECT_NEAR(RelativeMse(Format::kNvfp4, {1, 16}), 9.06e-3, 0.01 * 9.06e-3);
}

TEST(QuantisationError, OfNormalNumbersInNvfp4TilesIs124Em4) {
  EXPECT_NEAR(RelativeMse(Format::kNvfp4, {16, 16}), 1.24e-2, 0.01 * 1.24e-2);
}

TEST(QuantisationError, OfNormalNumbersInMxfp4Is134Em4) {
  EXPECT_NEAR(RelativeMse(Format::kMxfp4, {1, 32}), 1.34e-2, 0.01 * 1.34e-2);
}

// The cost of a scale shared by 32 rows: 1.7 times the error of 1x32.
TEST(QuantisationError, OfNormalNumbersInMxfp4TilesIs226Em4) {
  EXPECT_NEAR(RelativeMse(Format::kMxfp4, {32, 32}), 2.255e-2, 0.01 * 2.255e-2);
}

// Data for means of stochastic roundings. With a tensor amax of 2688, S_enc is 1 and a block whose
// largest magnitude is six times a power of two gets exactly that power as its scale: no value is
// above 6 and clips. (A scale that E4M3 rounds down makes the largest values of its block clip,
// which no number of roundings averages out.)
constexpr int kRows = 64;
constexpr int kCols = 256;
constexpr int kElements = kRows * kCols;
constexpr float kAmax = 2688;

float ScaleOfBlock(int i) { return std::ldexp(1.0f, i / 16 % 7); }

OperandSpec StochasticSpec() {
  OperandSpec spec = OperandSpec::Of(Format::kNvfp4);
  spec.rounding = Rounding::kStochastic;
  return spec;
}

// Squared error of the mean of n roundings for n = 1, 2, 4, …, 4096, in units of the block scale.
std::vector<double> ErrorOfMeans(const std::vector<float>& x) {
  Quantiser quantiser(StochasticSpec(), kRows, kCols);
  std::vector<double> sum(kElements, 0.0);
  std::vector<double> errors;
  for (uint32_t n = 1; n <= 4096; ++n) {
    const uint16_t* emulated = quantiser.Run(x, &kAmax, {.seed = 0x5eed, .stream = 1, .step = n});
    for (int i = 0; i < kElements; ++i) sum[i] += DecodeBf16(emulated[i]);
    if ((n & (n - 1)) != 0) continue;
    double error = 0;
    for (int i = 0; i < kElements; ++i) {
      const double d = (sum[i] / n - x[i]) / ScaleOfBlock(i);
      error += d * d;
    }
    errors.push_back(error / kElements);
  }
  return errors;
}

// The slope of log error over log n, by least squares.
double Slope(const std::vector<double>& errors) {
  const double count = static_cast<double>(errors.size());
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (size_t i = 0; i < errors.size(); ++i) {
    const double x = static_cast<double>(i);
    const double y = std::log2(errors[i]);
    sx += x, sy += y, sxx += x * x, sxy += x * y;
  }
  return (count * sxy - sx * sy) / (count * sxx - sx * sx);
}

// Eight random bits round up with a probability that is a multiple of 1/256: for any other number
// the mean stays up to 1/256 of a step low, which at n = 4096 is an eighth of the error.
TEST(StochasticRounding, MeanConvergesAsOneOverN) {
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(kElements);
  for (int i = 0; i < kElements; ++i) {
    const float unit = std::clamp(2.2f * normal(random), -6.0f, 6.0f);
    x[i] = (i % 16 == 5 ? 6.0f : unit) * ScaleOfBlock(i);
  }
  const std::vector<double> errors = ErrorOfMeans(x);
  ASSERT_EQ(errors.size(), 13u);
  EXPECT_GT(errors[0], 0.01);
  EXPECT_GT(Slope(errors), -1.1);
  EXPECT_LT(Slope(errors), -0.9);
  EXPECT_NEAR(errors.back(), errors[0] / 4096, 0.25 * errors[0] / 4096);
}

TEST(StochasticRounding, MeanOfMultiplesOfAStepOver256HasNoBias) {
  std::mt19937_64 random(3);
  constexpr float kGrid[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  std::vector<float> x(kElements);
  for (int i = 0; i < kElements; ++i) {
    const int low = static_cast<int>(random() % 7);
    const float part = static_cast<float>(random() % 256) / 256.0f;
    const float unit = kGrid[low] + part * (kGrid[low + 1] - kGrid[low]);
    x[i] = (i % 16 == 5 ? 6.0f : random() % 2 ? unit : -unit) * ScaleOfBlock(i);
  }
  const std::vector<double> errors = ErrorOfMeans(x);
  EXPECT_GT(Slope(errors), -1.02);
  EXPECT_LT(Slope(errors), -0.98);
  EXPECT_NEAR(errors.back(), errors[0] / 4096, 0.06 * errors[0] / 4096);
}

// Rounding errors of 256K numbers that are all halfway between two codes: ±1 at random.
std::vector<int> Draws(const RandomStream& random, Orientation orientation) {
  constexpr int kSide = 512;
  std::vector<float> x(kSide * kSide, 0.75f);
  for (int i = 0; i < kSide; ++i) {
    for (int k = 0; k < kSide; k += 16) x[i * kSide + k + i % 16] = 6.0f;  // in either direction
  }
  Quantiser quantiser(StochasticSpec(), kSide, kSide, orientation);
  const uint16_t* emulated = quantiser.Run(x, &kAmax, random);
  std::vector<int> draws;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == 6.0f) continue;
    const float value = DecodeBf16(emulated[i]);
    EXPECT_TRUE(value == 0.5f || value == 1.0f) << value;
    draws.push_back(value > 0.75f ? 1 : -1);
  }
  return draws;
}

double Correlation(const std::vector<int>& a, const std::vector<int>& b, size_t shift = 0) {
  double sum = 0;
  for (size_t i = shift; i < a.size(); ++i) sum += a[i] * b[i - shift];
  return sum / static_cast<double>(a.size() - shift);
}

TEST(StochasticRounding, StreamsStepsSeedsAndCopiesDrawIndependently) {
  const RandomStream base = {.seed = 1, .stream = 2, .step = 3};
  const std::vector<int> draws = Draws(base, Orientation::kRow);
  EXPECT_EQ(Draws(base, Orientation::kRow), draws);
  const double bound = 5 / std::sqrt(static_cast<double>(draws.size()));  // five sigmas
  double mean = 0;
  for (const int draw : draws) mean += draw;
  EXPECT_LT(std::fabs(mean / static_cast<double>(draws.size())), bound);
  const std::pair<const char*, RandomStream> others[] = {
      {"stream", {.seed = 1, .stream = 3, .step = 3}},
      {"step", {.seed = 1, .stream = 2, .step = 4}},
      {"seed", {.seed = 2, .stream = 2, .step = 3}},
      {"upper half of the seed", {.seed = 1 + (uint64_t{1} << 32), .stream = 2, .step = 3}},
      {"stream and step exchanged", {.seed = 1, .stream = 3, .step = 2}},
  };
  for (const auto& [name, other] : others) {
    EXPECT_LT(std::fabs(Correlation(draws, Draws(other, Orientation::kRow))), bound) << name;
  }
  RandomStream column = base;
  column.stream = 3;
  EXPECT_LT(std::fabs(Correlation(draws, Draws(column, Orientation::kColumn))), bound);
}

TEST(StochasticRounding, NeighboursDrawIndependently) {
  const std::vector<int> draws = Draws({.seed = 11, .stream = 12, .step = 13}, Orientation::kRow);
  const double bound = 5 / std::sqrt(static_cast<double>(draws.size()));
  for (const size_t shift : {1, 2, 3, 4, 5, 8, 15, 16, 30, 60, 480, 960}) {
    EXPECT_LT(std::fabs(Correlation(draws, draws, shift)), bound) << "at distance " << shift;
  }
}

}  // namespace
}  // namespace nibble
