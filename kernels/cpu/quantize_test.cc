// The CPU backend against an oracle written only from the numeric contract, in double arithmetic
// and table searches: it shares no formula with the code under test.
#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/quantize_testing.h"

namespace nibble {
namespace {

// BF16 by its definition: 8 significant bits down to 2^-133, ties to even, infinite from 2^128.
uint16_t Bf16(double x) {
  if (std::isnan(x)) return 0x7fc0;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(x);
  if (std::isinf(x)) return sign | 0x7f80;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -126);
  const double rounded =
      std::ldexp(std::nearbyint(std::ldexp(magnitude, 7 - exponent)), exponent - 7);
  if (rounded >= 0x1p128) return sign | 0x7f80;
  return static_cast<uint16_t>(sign | ToU32(static_cast<float>(rounded)) >> 16);
}
float ThroughBf16(float x) { return FromU32(static_cast<uint32_t>(Bf16(x)) << 16); }

// Magnitudes of the finite codes of an element or scale format.
std::vector<double> Grid(int exponent_bits, int mantissa_bits, int codes) {
  std::vector<double> grid;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int one = 1 << mantissa_bits;
  for (int code = 0; code < codes; ++code) {
    const int field = code / one;
    const int mantissa = code % one + (field > 0 ? one : 0);
    grid.push_back(std::ldexp(mantissa, std::max(field, 1) - bias - mantissa_bits));
  }
  return grid;
}
const std::vector<double>& GridOf(Element element) {
  static const std::vector<double> e2m1 = Grid(2, 1, 8);
  static const std::vector<double> e4m3 = Grid(4, 3, 0x7f);
  static const std::vector<double> e5m2 = Grid(5, 2, 0x7c);
  return element == Element::kE2M1 ? e2m1 : element == Element::kE4M3 ? e4m3 : e5m2;
}

int Floor(const std::vector<double>& grid, double x) {
  return static_cast<int>(std::upper_bound(grid.begin(), grid.end(), x) - grid.begin()) - 1;
}
int Nearest(const std::vector<double>& grid, double x) {
  const int low = Floor(grid, x);
  if (low + 1 == static_cast<int>(grid.size())) return low;
  const double middle = (grid[low] + grid[low + 1]) / 2;
  return x > middle || (x == middle && low % 2 == 1) ? low + 1 : low;
}
int Stochastic(const std::vector<double>& grid, float x, int random) {
  const int low = Floor(grid, x);
  if (low + 1 == static_cast<int>(grid.size())) return low;
  const float added = static_cast<float>(random / 256.0 * (grid[low + 1] - grid[low]));
  return Floor(grid, x + added);
}

// The random bytes of 16 elements, by their first element's index in the unsharded copy divided by
// 16.
std::array<uint8_t, 16> RandomBytes(const RandomStream& stream, uint64_t block) {
  uint32_t c[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), stream.stream,
                   stream.step};
  uint32_t k0 = static_cast<uint32_t>(stream.seed);
  uint32_t k1 = static_cast<uint32_t>(stream.seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9, k1 += 0xbb67ae85) {
    const uint64_t p = uint64_t{0xd2511f53} * c[0];
    const uint64_t q = uint64_t{0xcd9e8d57} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(q >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(q),
                              static_cast<uint32_t>(p >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p)};
    std::copy(next, next + 4, c);
  }
  std::array<uint8_t, 16> bytes;
  for (int e = 0; e < 16; ++e) bytes[e] = static_cast<uint8_t>(c[e / 4] >> (8 * (e % 4)));
  return bytes;
}

// The quantisation to test; x: [rows, cols] in the coordinates of the copy.
struct Case {
  OperandSpec spec;
  bool column = false;
  bool bf16 = false;
  int rows = 0, cols = 0;
  std::vector<float> x;
  std::optional<float> amax;
  RandomStream random = {.seed = 0x0123456789abcdef, .stream = 7, .step = 11};
  // Position of `x` in the unsharded copy, in the coordinates of the copy.
  int64_t first_row = 0, first_col = 0, global_cols = 0;
};

struct ExpectedCopy {
  std::vector<uint32_t> codes, scales;
  std::vector<uint16_t> emulated;
  float amax = 0;
  uint64_t non_finite = 0;
};

float Times(double a, double b) { return static_cast<float>(a * b); }
float Over(double a, double b) { return static_cast<float>(a / b); }
float Clamp(float x) { return std::min(x, FLT_MAX); }

// Sums are exact for the data that the tests transform, so order and precision do not matter.
void Transform(Case& c) {
  const HadamardSpec& spec = c.spec.hadamard;
  const int n = spec.size;
  const float norm = static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
  for (int first = 0; first < c.rows * c.cols; first += n) {
    std::vector<double> in(n);
    for (int i = 0; i < n; ++i) {
      const bool negative = spec.signs == SignChoice::kGiven
                                ? spec.mask[i / 32] >> (i % 32) & 1
                                : spec.signs == SignChoice::kFixed && 0xd7e8 >> (i % 16) & 1;
      in[i] = ThroughBf16(c.x[first + i]) * (negative ? -1.0 : 1.0);
    }
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int i = 0; i < n; ++i) {
        sum += std::popcount(static_cast<unsigned>(i & j)) % 2 ? -in[i] : in[i];
      }
      c.x[first + j] = ThroughBf16(Times(sum, norm));
    }
  }
}

// A block's stored scale, its value, and the factor of its elements (0: all codes are 0).
struct Scale {
  uint32_t bits;
  double value;
  float encode;
};
Scale ScaleOf(const OperandSpec& spec, float tensor_amax, float amax) {
  const FormatInfo& info = Info(spec.format);
  const double max = GridOf(info.element).back();
  if (info.scale == ScaleKind::kE8M0) {
    const double target = std::isinf(amax) ? 0x1p128 : amax;
    int code = 0;
    while (std::ldexp(max, code - 127) < target) ++code;
    return {static_cast<uint32_t>(code), std::ldexp(1.0, code - 127),
            static_cast<float>(std::ldexp(1.0, 127 - code))};
  }
  if (info.scale == ScaleKind::kF32) {
    const float scale = Clamp(Over(amax, max));
    return {ToU32(scale), scale, scale == 0 ? 0.0f : Clamp(Over(1, scale))};
  }
  float s_enc = Clamp(Over(2688, tensor_amax));
  if (tensor_amax == 0 || s_enc == 0) s_enc = 1;
  const float scaled = spec.formula == FormulaVersion::kTe2_14
                           ? Times(amax, Times(s_enc, FromU32(0x3e2aaaab)))
                           : Times(Over(amax, 6), s_enc);
  const std::vector<double>& grid = GridOf(Element::kE4M3);
  const int code = Nearest(grid, Clamp(scaled));
  const float encode = code == 0 ? 0.0f : Clamp(Over(1, Times(grid[code], Over(1, s_enc))));
  return {static_cast<uint32_t>(code), grid[code], encode};
}

ExpectedCopy Oracle(Case c) {
  const FormatInfo& info = Info(c.spec.format);
  const std::vector<double>& grid = GridOf(info.element);
  if (c.bf16) {
    for (float& x : c.x) x = ThroughBf16(x);
  }
  if (c.spec.hadamard.size > 0) Transform(c);
  ExpectedCopy e;
  for (const float x : c.x) {
    if (!std::isnan(x)) e.amax = std::max(e.amax, std::fabs(x));
    if (!std::isfinite(x)) ++e.non_finite;
  }
  if (c.amax) e.amax = *c.amax;
  e.codes.resize(c.x.size());
  e.emulated.resize(c.x.size());
  std::vector<std::array<uint8_t, 16>> random;
  for (size_t i = 0; i < c.x.size(); i += 16) {
    const int64_t row = c.first_row + static_cast<int64_t>(i) / c.cols;
    const int64_t col = c.first_col + static_cast<int64_t>(i) % c.cols;
    const int64_t width = c.global_cols > 0 ? c.global_cols : c.cols;
    random.push_back(RandomBytes(c.random, (row * width + col) / 16));
  }
  const int block_rows = c.spec.block.rows == kAll ? c.rows : c.spec.block.rows;
  const int block_cols = c.spec.block.cols == kAll ? c.cols : c.spec.block.cols;
  for (int row = 0; row < c.rows; row += block_rows) {
    for (int col = 0; col < c.cols; col += block_cols) {
      float amax = 0;
      const auto each = [&](auto&& element) {
        for (int r = row; r < row + block_rows; ++r) {
          for (int k = col; k < col + block_cols; ++k) element(r * c.cols + k);
        }
      };
      each([&](int i) {
        if (!std::isnan(c.x[i])) amax = std::max(amax, std::fabs(c.x[i]));
      });
      if (c.spec.block.rows == kAll) amax = e.amax;
      const Scale scale = ScaleOf(c.spec, e.amax, amax);
      e.scales.push_back(scale.bits);
      const uint32_t sign_bit = info.element == Element::kE2M1 ? 8 : 0x80;
      each([&](int i) {
        const float scaled = Times(c.x[i], scale.encode);
        double value = 0;
        if (scale.encode != 0 && std::isnan(c.x[i])) {
          e.codes[i] = info.element == Element::kE2M1 ? 7 : 0x7f;
          value = info.element == Element::kE2M1 ? 6 : kNan;
        } else if (scale.encode != 0) {
          const float magnitude = std::fabs(scaled);
          const int code = c.spec.rounding == Rounding::kNearest
                               ? Nearest(grid, magnitude)
                               : Stochastic(grid, magnitude, random[i / 16][i % 16]);
          e.codes[i] = code | (std::signbit(scaled) ? sign_bit : 0);
          value = std::signbit(scaled) ? -grid[code] : grid[code];
        }
        e.emulated[i] = Bf16(info.exact_in_bf16 ? value * scale.value : value);
      });
    }
  }
  return e;
}

std::vector<float> Turned(const std::vector<float>& x, int rows, int cols) {
  std::vector<float> out(x.size());
  for (int r = 0; r < rows; ++r) {
    for (int k = 0; k < cols; ++k) out[k * rows + r] = x[r * cols + k];
  }
  return out;
}

// Compares all results of one run. The source's rows are `padding` elements apart.
void RunAndCompare(const Case& c, const ExpectedCopy& e, cpu::Isa isa, EmulatedLayout layout,
                   int padding) {
  const auto backend = CpuBackend::Create({.threads = 2, .isa = isa});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const int rows = c.column ? c.cols : c.rows;
  const int cols = c.column ? c.rows : c.cols;
  const std::vector<float> source = c.column ? Turned(c.x, c.rows, c.cols) : c.x;
  const int stride = cols + padding;
  std::vector<float> f32(rows * stride, kNan);
  std::vector<uint16_t> bf16(rows * stride, 0x7fc0);
  for (int i = 0; i < rows * cols; ++i) {
    f32[i / cols * stride + i % cols] = source[i];
    bf16[i / cols * stride + i % cols] = Bf16(source[i]);
  }
  auto out = QuantizedTensor::Create(
      (*backend)->memory(), {.spec = c.spec,
                             .orientation = c.column ? Orientation::kColumn : Orientation::kRow,
                             .rows = rows,
                             .cols = cols,
                             .emulated = layout});
  ASSERT_TRUE(out.ok()) << out.status();
  QuantizeRequest request;
  request.x = c.bf16 ? ConstMatrix{bf16.data(), DType::kBf16, rows, cols, stride}
                     : ConstMatrix{f32.data(), DType::kF32, rows, cols, stride};
  request.placement = c.column ? Placement{c.first_col, c.first_row, c.global_cols, 0}
                               : Placement{c.first_row, c.first_col, 0, c.global_cols};
  CopyRequest& copy = c.column ? request.column : request.row;
  copy.out = &*out;
  copy.amax = c.amax ? &*c.amax : nullptr;
  copy.random = c.random;
  const absl::Status status = (*backend)->Quantize(request);
  ASSERT_TRUE(status.ok()) << status;
  SCOPED_TRACE(out->Name() + (c.bf16 ? " bf16 " : " f32 ") + (*backend)->Name());

  const auto head = (*backend)->ReadHead(*out);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(ToU32(head->amax), ToU32(e.amax));
  EXPECT_EQ(head->non_finite, e.non_finite);
  const int scale_bytes = ScaleBytes(out->format().scale);
  ASSERT_EQ(out->scale_bytes(), static_cast<int64_t>(e.scales.size() * scale_bytes));
  for (size_t i = 0; i < e.scales.size(); ++i) {
    const uint32_t scale = scale_bytes == 1 ? static_cast<const uint8_t*>(out->scales())[i]
                                            : static_cast<const uint32_t*>(out->scales())[i];
    ASSERT_EQ(scale, e.scales[i]) << "scale " << i;
  }
  const bool fp4 = out->format().element == Element::kE2M1;
  for (int i = 0; i < rows * cols; ++i) {
    const int row = i / c.cols;
    const int col = i % c.cols;
    const uint8_t byte = out->codes()[row * out->code_row_bytes() + (fp4 ? col / 2 : col)];
    const uint32_t code = !fp4 ? byte : col % 2 == 0 ? byte & 0xf : byte >> 4;
    ASSERT_EQ(code, e.codes[i]) << "code at " << row << ", " << col << " of " << c.x[i];
    const bool turned = c.column && layout == EmulatedLayout::kSource;
    const uint16_t emulated = out->emulated()[turned ? col * c.rows + row : i];
    ASSERT_EQ(emulated, e.emulated[i]) << "emulated at " << row << ", " << col;
  }
}

void Check(const Case& c) {
  const ExpectedCopy e = Oracle(c);
  int padding = 0;
  for (const cpu::Isa isa : cpu::SupportedIsas()) {
    RunAndCompare(c, e, isa, EmulatedLayout::kSource, padding);
    RunAndCompare(c, e, isa, EmulatedLayout::kCopy, padding + 1);
    padding += 3;
  }
}

int RowsFor(const OperandSpec& spec) { return spec.block.rows > 1 ? 128 : 37; }

// Normal numbers over many binades, varying by group, with zeros of both signs, whole blocks of
// zeros, blocks that underflow, and ties.
std::vector<float> WideData(int rows, int cols, int seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(rows * cols);
  for (int i = 0; i < rows * cols; ++i) {
    const int row = i / cols;
    const int group = i % cols / 32;
    const int exponent = (row * 7 + group * 5) % 23 == 3 ? -30 : (row / 16 + 3 * group) % 14 - 10;
    x[i] = std::ldexp(normal(random), exponent);
    if (random() % 16 == 0) x[i] = std::copysign(0.0f, x[i]);
    if (random() % 16 == 0) x[i] = std::ldexp(static_cast<float>(random() % 25) / 4 - 3, exponent);
    if ((row / 16 + group) % 11 == 5) x[i] = std::copysign(0.0f, x[i]);
  }
  return x;
}

TEST(CpuQuantize, EveryFormatBlockOrientationAndRoundingMatchesTheOracle) {
  int seed = 1;
  for (const OperandSpec& spec : EverySpec()) {
    for (const bool column : {false, true}) {
      for (const bool bf16 : {false, true}) {
        const int rows = RowsFor(spec);
        Check({spec, column, bf16, rows, 256, WideData(rows, 256, seed++), {}});
      }
    }
  }
}

TEST(CpuQuantize, EveryHadamardSizeMatchesTheOracle) {
  std::mt19937_64 random(2);
  for (OperandSpec spec : EverySpec()) {
    if (spec.block.rows > 1) continue;
    for (int size = 2; size <= 128; size *= 2) {
      const bool column = size % 3 == 1 || spec.format == Format::kNvfp4;
      spec.hadamard = HadamardSpec();
      spec.hadamard.size = size;
      if (size == 4 || size == 64) spec.hadamard.signs = SignChoice::kNone;
      if (size % 3 == 2) {
        spec.hadamard.signs = SignChoice::kGiven;
        for (uint32_t& word : spec.hadamard.mask) word = static_cast<uint32_t>(random());
      }
      // Multiples of 2^-12 below 8: FP32 sums of 128 of them, rounded to BF16 first, are exact.
      std::vector<float> x(37 * 256);
      for (float& v : x) v = (static_cast<int>(random() % 65535) - 32767) / 4096.0f;
      for (const bool bf16 : {false, true}) {
        Check({spec, column, bf16, 37, 256, x, {}});
        if (spec.format == Format::kNvfp4) Check({spec, !column, bf16, 37, 256, x, {}});
      }
    }
  }
}

TEST(CpuQuantize, BothFormulaVersionsMatchTheOracleWhereTheyDiffer) {
  OperandSpec now = OperandSpec::Of(Format::kNvfp4);
  OperandSpec before = now;
  before.formula = FormulaVersion::kTePre2_14;
  int pairs = 0;
  for (uint32_t tensor = 0x40800000; tensor < 0x41000000; tensor += 0x10000) {
    const float amax = FromU32(tensor);
    std::vector<float> maxima = {amax};
    for (uint32_t block = tensor - 0x02000000; block < tensor; block += 0x10000) {
      const float x = FromU32(block);
      if (ScaleOf(now, amax, x).bits != ScaleOf(before, amax, x).bits) maxima.push_back(x);
    }
    if (maxima.size() == 1) continue;
    pairs += static_cast<int>(maxima.size()) - 1;
    // Blocks, and tiles, with these maxima.
    std::vector<float> x(32 * 128);
    for (int i = 0; i < 32 * 128; ++i) {
      const float block_amax = maxima[(i / 16 % 8 + i / 2048 * 8) % maxima.size()];
      x[i] = i % 16 == 3 ? -block_amax : block_amax * static_cast<float>(i % 7) / 8;
    }
    for (OperandSpec spec : {now, before}) {
      for (const BlockShape shape : {BlockShape{1, 16}, BlockShape{16, 16}}) {
        spec.block = shape;
        Check({spec, tensor / 0x10000 % 2 == 1, false, 32, 128, x, {}});
      }
    }
  }
  EXPECT_GT(pairs, 10);
}

TEST(CpuQuantize, AGivenAmaxReplacesTheTensors) {
  for (const OperandSpec& spec : EverySpec()) {
    const int rows = RowsFor(spec);
    const std::vector<float> x = WideData(rows, 128, 4);
    for (const float amax : {0.0f, 1.5f, 1000.0f, 1e-30f, 3e38f}) {
      Check({spec, amax == 1000.0f, false, rows, 128, x, amax});
    }
  }
}

TEST(CpuQuantize, NonFiniteNumbersAreCountedAndRoundedAsTheContractSays) {
  std::mt19937_64 random(5);
  for (OperandSpec spec : EverySpec()) {
    for (const int hadamard : {0, 16, 32}) {
      if (hadamard > 0 && spec.block.rows > 1) continue;
      spec.hadamard.size = hadamard;
      const int rows = RowsFor(spec);
      std::vector<float> x(rows * 256);
      for (float& v : x) v = static_cast<float>(static_cast<int>(random() % 255) - 127) / 16;
      for (int i = 0; i < 9; ++i) {
        x[random() % x.size()] = i % 3 == 0 ? kNan : i % 3 == 1 ? kInf : -kInf;
      }
      x[0] = -kNan;
      const std::vector<float> nan_only = [&] {
        std::vector<float> y = x;
        for (float& v : y) v = std::isinf(v) ? kNan : v;
        return y;
      }();
      for (const bool column : {false, true}) {
        for (const std::optional<float> amax : {std::optional<float>(), std::optional(8.0f)}) {
          Check({spec, column, column, rows, 256, x, amax});
          Check({spec, column, !column, rows, 256, nan_only, amax});
        }
      }
    }
  }
}

TEST(CpuQuantize, TheLargestAndSmallestMagnitudesMatchTheOracle) {
  for (const OperandSpec& spec : EverySpec()) {
    const int rows = RowsFor(spec);
    for (const float amax : {FLT_MAX, 0x1p127f, FLT_MIN, 0x1p-130f, FLT_TRUE_MIN, 0.0f}) {
      std::vector<float> x = WideData(rows, 128, 6);
      float largest = 0;
      for (float& v : x) largest = std::max(largest, std::fabs(v));
      for (float& v : x) v = static_cast<float>(static_cast<double>(v) / largest * amax);
      for (const bool column : {false, true}) {
        Check({spec, column, false, rows, 128, x, {}});
        if (amax < FLT_MAX) Check({spec, column, true, rows, 128, x, {}});
      }
    }
  }
}

// Element 2^36 starts the blocks of 16 whose number needs more than 32 bits.
TEST(CpuQuantize, RandomBitsFollowTheUnshardedIndexBeyond32Bits) {
  OperandSpec spec = OperandSpec::Of(Format::kNvfp4);
  spec.rounding = Rounding::kStochastic;
  for (const bool column : {false, true}) {
    Case c = {spec, column, false, 37, 256, WideData(37, 256, 8), {}};
    c.global_cols = 257 * 16;
    c.first_row = 16711935;  // · 257 = 2^32 - 1
    Check(c);
    c.first_row -= 20;
    c.first_col = 112;
    Check(c);
    c.first_row = int64_t{1} << 40;
    Check(c);
  }
}

TEST(CpuQuantize, TensorAndRowWideBlocksAllowAnyLength) {
  for (const Format format :
       {Format::kFp8Tensor, Format::kFp8TensorE5m2, Format::kFp4TokenChannel}) {
    for (const int cols : {2, 14, 18, 250, 2050}) {
      for (const bool column : {false, true}) {
        for (const bool bf16 : {false, true}) {
          std::vector<float> x = WideData(19, cols, cols);
          Check({OperandSpec::Of(format), column, bf16, 19, cols, x, {}});
          x[cols - 1] = kNan;
          Check({OperandSpec::Of(format), column, bf16, 19, cols, x, {}});
          Check({OperandSpec::Of(format), column, bf16, 19, cols, x, 2.0f});
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble
