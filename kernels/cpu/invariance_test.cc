// Changes that must not change a bit of the results: the instruction set, the number of threads,
// quantising both copies at once, sharding, the path for non-finite numbers. And statistics,
// compared with sums in double.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/quantize_testing.h"
#include "kernels/formats/scaling.h"
#include "kernels/tensor/hadamard_signs.h"
#include "kernels/tensor/quant_stats.h"

namespace nibble {
namespace {

constexpr RandomStream kRandom = {.seed = 0xfedcba9876543210, .stream = 3, .step = 5};

struct Source {
  int rows, cols;
  std::vector<float> x;
  ConstMatrix matrix() const { return ConstMatrix::Of(x.data(), rows, cols); }
};

Source Normal(int rows, int cols, int seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Source source = {rows, cols, std::vector<float>(rows * cols)};
  for (int i = 0; i < rows * cols; ++i) {
    const int group = i / cols / 32 * 5 + i % cols / 32;
    source.x[i] = std::ldexp(normal(random), group % 7 == 3 ? -18 : group % 5);
    if (random() % 32 == 0) source.x[i] = 0;
  }
  return source;
}

// Everything that a copy consists of.
struct Bits {
  std::vector<uint8_t> codes, scales;
  std::vector<uint16_t> emulated;
  float amax;
  uint64_t non_finite;
  StatSums stats;
  friend bool operator==(const Bits&, const Bits&) = default;
};

struct Wanted {
  OperandSpec spec;
  Orientation orientation = Orientation::kRow;
  EmulatedLayout layout = EmulatedLayout::kSource;
  const float* amax = nullptr;
};

QuantizedTensor NewTensor(CpuBackend& backend, const Wanted& wanted, const Source& source) {
  auto out = QuantizedTensor::Create(backend.memory(), {.spec = wanted.spec,
                                                        .orientation = wanted.orientation,
                                                        .rows = source.rows,
                                                        .cols = source.cols,
                                                        .emulated = wanted.layout});
  EXPECT_TRUE(out.ok()) << out.status();
  return *std::move(out);
}

Bits Read(CpuBackend& backend, const QuantizedTensor& out) {
  const QuantHead head = *backend.ReadHead(out);
  const uint8_t* scales = static_cast<const uint8_t*>(out.scales());
  return {{out.codes(), out.codes() + out.code_bytes()},
          {scales, scales + out.scale_bytes()},
          {out.emulated(), out.emulated() + out.rows() * out.cols()},
          head.amax,
          head.non_finite,
          head.stats};
}

// All copies of one request: a row and a column copy at most.
std::vector<Bits> Quantized(CpuBackend& backend, const Source& source,
                            const std::vector<Wanted>& copies, const Placement& placement = {}) {
  QuantizeRequest request;
  request.x = source.matrix();
  request.placement = placement;
  std::vector<QuantizedTensor> out;
  for (const Wanted& wanted : copies) out.push_back(NewTensor(backend, wanted, source));
  for (size_t i = 0; i < copies.size(); ++i) {
    CopyRequest& copy = out[i].is_column() ? request.column : request.row;
    copy.out = &out[i];
    copy.amax = copies[i].amax;
    copy.random = kRandom;
    copy.random.stream += out[i].is_column();
    copy.statistics = true;
  }
  const absl::Status status = backend.Quantize(request);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<Bits> bits;
  for (const QuantizedTensor& tensor : out) bits.push_back(Read(backend, tensor));
  return bits;
}

std::unique_ptr<CpuBackend> Best() {
  return *CpuBackend::Create({.threads = 2, .isa = cpu::SupportedIsas().back()});
}

// Compares every backend with the first. Skips copies that do not fit the source.
void ExpectSameEverywhere(const std::vector<std::unique_ptr<CpuBackend>>& backends, size_t step,
                          const Source& source, const OperandSpec& spec, int bad_numbers) {
  std::vector<Wanted> copies;
  for (const Orientation orientation : {Orientation::kRow, Orientation::kColumn}) {
    if (!Fits(spec, orientation, source.rows, source.cols)) continue;
    const auto layout = source.rows % 32 == 0 ? EmulatedLayout::kCopy : EmulatedLayout::kSource;
    copies.push_back({spec, orientation, layout});
  }
  if (copies.empty()) return;
  const std::vector<Bits> first = Quantized(*backends[0], source, copies);
  for (const Bits& bits : first) {
    if (spec.hadamard.size == 0) {
      ASSERT_EQ(bits.non_finite, static_cast<uint64_t>(bad_numbers)) << spec.Name();
    }
    ASSERT_FALSE(std::isnan(bits.amax));
  }
  for (size_t i = step; i < backends.size(); i += step) {
    ASSERT_EQ(Quantized(*backends[i], source, copies), first)
        << spec.Name() << " of [" << source.rows << ", " << source.cols << "], "
        << backends[i]->Name() << " against " << backends[0]->Name() << ", " << bad_numbers
        << " bad numbers";
  }
}

int PlantBadNumbers(Source& source) {
  std::mt19937_64 random(9);
  int planted = 0;
  for (int i = 0; i < 7; ++i) {
    float& x = source.x[random() % source.x.size()];
    planted += std::isfinite(x);
    x = i % 3 == 0 ? kInf : i % 3 == 1 ? -kNan : kNan;
  }
  return planted;
}

TEST(CpuInvariance, ThreadsAndInstructionSetsChangeNoBit) {
  const auto backends = Backends({1, 2, 3, 7});
  for (const auto& [rows, cols] : {std::pair{16, 16},
                                   {48, 304},
                                   {272, 112},
                                   {96, 37},
                                   {37, 288},
                                   {128, 256},
                                   {51, 250},
                                   {256, 128}}) {
    Source clean = Normal(rows, cols, rows + cols);
    Source dirty = clean;
    const int planted = PlantBadNumbers(dirty);
    for (OperandSpec spec : EverySpec()) {
      for (const int size : {0, 2, 8, 16, 32, 128}) {
        if (size > 0 && spec.block.rows > 1) continue;
        spec.hadamard.size = size;
        const size_t step = size == 0 || size == 16 ? 1 : 5;
        ExpectSameEverywhere(backends, step, clean, spec, 0);
        ExpectSameEverywhere(backends, step, dirty, spec, planted);
      }
    }
  }
}

TEST(CpuInvariance, ThreadsAndInstructionSetsChangeNoBitOfALargeTensor) {
  const auto backends = Backends({1, 2, 3, 7});
  const Source clean = Normal(256, 4112, 1);
  Source dirty = clean;
  const int planted = PlantBadNumbers(dirty);
  for (OperandSpec spec : EverySpec()) {
    ExpectSameEverywhere(backends, 5, clean, spec, 0);
    if (spec.format != Format::kNvfp4 || spec.block.rows > 1) continue;
    ExpectSameEverywhere(backends, 5, dirty, spec, planted);
    for (const int size : {16, 128}) {
      spec.hadamard.size = size;
      ExpectSameEverywhere(backends, 5, clean, spec, 0);
    }
  }
}

// Outputs larger than the caches may be written past them, with all rows aligned (the first shape)
// and with only some aligned.
TEST(CpuInvariance, ThreadsAndInstructionSetsChangeNoBitOfOutputsBeyondTheCaches) {
  const auto backends = Backends({1, 2, 3, 7});
  for (const auto& [rows, cols] : {std::pair{1024, 4224}, {1056, 4112}}) {
    const Source source = Normal(rows, cols, 2);
    for (const Format format : {Format::kNvfp4, Format::kMxfp8, Format::kFp8Tensor}) {
      OperandSpec spec = OperandSpec::Of(format);
      ExpectSameEverywhere(backends, 5, source, spec, 0);
      spec.rounding = Rounding::kStochastic;
      spec.hadamard.size = 16;
      ExpectSameEverywhere(backends, 5, source, spec, 0);
    }
  }
}

TEST(CpuInvariance, CopiesMadeTogetherEqualCopiesMadeAlone) {
  const auto backend = Best();
  const Source source = Normal(128, 256, 2);
  std::vector<OperandSpec> specs = EverySpec();
  OperandSpec transformed = OperandSpec::Of(Format::kNvfp4);
  for (const int size : {16, 64}) {
    transformed.hadamard.size = size;
    specs.push_back(transformed);
  }
  for (const OperandSpec& row_spec : specs) {
    const Wanted row = {row_spec, Orientation::kRow};
    const Bits row_alone = Quantized(*backend, source, {row})[0];
    for (const OperandSpec& column_spec : specs) {
      const Wanted column = {column_spec, Orientation::kColumn};
      const std::vector<Bits> both = Quantized(*backend, source, {row, column});
      ASSERT_EQ(both[0], row_alone) << row_spec.Name() << " beside " << column_spec.Name();
      if (&row_spec != &specs.front()) continue;
      ASSERT_EQ(both[1], Quantized(*backend, source, {column})[0]) << column_spec.Name();
    }
  }
}

TEST(CpuInvariance, AGivenAmaxHasTheSameEffectAsAComputedOne) {
  const auto backend = Best();
  const Source source = Normal(256, 128, 3);
  for (OperandSpec spec : EverySpec()) {
    for (const int size : {0, 16, 32}) {
      if (size > 0 && spec.block.rows > 1) continue;
      spec.hadamard.size = size;
      for (const Orientation orientation : {Orientation::kRow, Orientation::kColumn}) {
        const Bits own = Quantized(*backend, source, {{spec, orientation}})[0];
        const Bits given = Quantized(*backend, source,
                                     {{spec, orientation, EmulatedLayout::kSource, &own.amax}})[0];
        ASSERT_EQ(given, own) << spec.Name();
      }
    }
  }
}

TEST(CpuInvariance, AStepInMemoryHasTheSameEffectAsAGivenOne) {
  const auto backend = Best();
  const Source source = Normal(64, 128, 6);
  OperandSpec spec = OperandSpec::Of(Format::kNvfp4);
  spec.rounding = Rounding::kStochastic;
  const Wanted wanted = {spec, Orientation::kRow};
  const Bits given = Quantized(*backend, source, {wanted})[0];
  QuantizedTensor out = NewTensor(*backend, wanted, source);
  uint64_t step = kRandom.step + (uint64_t{1} << 32);  // the upper half does not count
  QuantizeRequest request;
  request.x = source.matrix();
  request.row = {.out = &out,
                 .random = {.seed = kRandom.seed, .stream = kRandom.stream, .step = 99},
                 .step = &step,
                 .statistics = true};
  ASSERT_TRUE(backend->Quantize(request).ok());
  EXPECT_EQ(Read(*backend, out), given);
  ++step;
  ASSERT_TRUE(backend->Quantize(request).ok());
  EXPECT_NE(Read(*backend, out).codes, given.codes);
}

// The reference does patches with NaN, the lane kernels those without. Numbers that are skipped on
// one side and zero on the other do not change other results, statistics included.
TEST(CpuInvariance, LanesGiveTheBitsOfTheReference) {
  const auto backends = Backends({1, 2, 3, 7});
  constexpr int kRows = 256;
  constexpr int kCols = 256;
  const Source data = Normal(kRows, kCols, 4);
  for (OperandSpec spec : EverySpec()) {
    for (const int size : {0, 4, 16, 128}) {
      if (size > 0 && spec.block.rows > 1) continue;
      spec.hadamard.size = size;
      for (const bool column : {false, true}) {
        const auto left_out = [&](int row, int col) {
          // One tile in each copy row, which a transform does not mix with others.
          const int along = column ? row : col;
          const int across = column ? col : row;
          return size == 0 ? along == across % 16 : along < std::max(size, 16);
        };
        Source zeros = data;
        Source bad = zeros;
        uint64_t count = 0;
        for (int i = 0; i < kRows * kCols; ++i) {
          if (!left_out(i / kCols, i % kCols)) continue;
          zeros.x[i] = 0;
          bad.x[i] = kNan;
          ++count;
        }
        const Wanted wanted = {spec, column ? Orientation::kColumn : Orientation::kRow,
                               EmulatedLayout::kCopy};
        for (size_t i = 0; i < backends.size(); i += 4) {
          const Bits lanes = Quantized(*backends[i], zeros, {wanted})[0];
          const Bits reference = Quantized(*backends[i], bad, {wanted})[0];
          SCOPED_TRACE(spec.Name() + (column ? " column " : " row ") + backends[i]->Name());
          ASSERT_EQ(reference.scales, lanes.scales);
          ASSERT_EQ(reference.stats, lanes.stats);
          ASSERT_EQ(reference.amax, lanes.amax);
          ASSERT_EQ(lanes.non_finite, 0u);
          ASSERT_EQ(reference.non_finite, count);
          const bool fp4 = Info(spec.format).element == Element::kE2M1;
          const int copy_cols = column ? kRows : kCols;
          for (int k = 0; k < kRows * kCols; ++k) {
            const int line = k / copy_cols;
            const int at = k % copy_cols;
            if (column ? left_out(at, line) : left_out(line, at)) continue;
            ASSERT_EQ(reference.emulated[k], lanes.emulated[k]) << line << ", " << at;
            const int shift = fp4 && at % 2 == 1 ? 4 : 0;
            const uint8_t mask = fp4 ? 0x0f : 0xff;
            const int byte = fp4 ? k / 2 : k;
            ASSERT_EQ(reference.codes[byte] >> shift & mask, lanes.codes[byte] >> shift & mask)
                << line << ", " << at;
          }
        }
      }
    }
  }
}

// [row0, row0 + rows) by [first, first + count) of a matrix of rows `stride` long.
template <class T>
std::vector<T> Slice(const std::vector<T>& all, size_t stride, int row0, int rows, size_t first,
                     size_t count) {
  std::vector<T> slice;
  for (int row = row0; row < row0 + rows; ++row) {
    const auto begin = all.begin() + row * stride + first;
    slice.insert(slice.end(), begin, begin + count);
  }
  return slice;
}

TEST(CpuInvariance, ShardsAreSlicesOfTheUnshardedTensor) {
  const auto backend = Best();
  constexpr int kRows = 256;
  constexpr int kCols = 512;
  const Source whole = Normal(kRows, kCols, 5);
  for (OperandSpec spec : EverySpec()) {
    for (const int size : {0, 16, 64}) {
      if (size > 0 && spec.block.rows > 1) continue;
      spec.hadamard.size = size;
      for (const bool column : {false, true}) {
        const Orientation orientation = column ? Orientation::kColumn : Orientation::kRow;
        const Bits all =
            Quantized(*backend, whole, {{spec, orientation, EmulatedLayout::kCopy}})[0];
        for (const auto& [row0, col0, rows, cols] : {std::array{0, 0, 128, 512},
                                                     {128, 0, 128, 512},
                                                     {0, 256, 256, 128},
                                                     {128, 384, 128, 128}}) {
          // In the coordinates of the copy.
          const int line0 = column ? col0 : row0, lines = column ? cols : rows;
          const int at0 = column ? row0 : col0, count = column ? rows : cols;
          const int length = column ? kRows : kCols;
          if (spec.block == BlockShape{1, kAll} && count != length)
            continue;  // the scale is that of the whole line
          Source shard = {rows, cols, Slice(whole.x, kCols, row0, rows, col0, cols)};
          const Bits part =
              Quantized(*backend, shard, {{spec, orientation, EmulatedLayout::kCopy, &all.amax}},
                        {row0, col0, kRows, kCols})[0];
          SCOPED_TRACE(spec.Name() + " shard at " + std::to_string(row0) + ", " +
                       std::to_string(col0));
          const int bits = ElementBits(Info(spec.format).element);
          ASSERT_EQ(part.codes, Slice(all.codes, length * bits / 8, line0, lines, at0 * bits / 8,
                                      count * bits / 8));
          ASSERT_EQ(part.emulated, Slice(all.emulated, length, line0, lines, at0, count));
          const int bytes = ScaleBytes(Info(spec.format).scale);
          if (spec.block.rows == kAll) {
            ASSERT_EQ(part.scales, all.scales);
          } else {
            const int per_line = spec.block.cols == kAll ? 1 : length / spec.block.cols;
            const int wide = spec.block.cols == kAll ? 1 : count / spec.block.cols;
            const int first = spec.block.cols == kAll ? 0 : at0 / spec.block.cols;
            ASSERT_EQ(part.scales, Slice(all.scales, per_line * bytes, line0 / spec.block.rows,
                                         lines / spec.block.rows, first * bytes, wide * bytes));
          }
        }
      }
    }
  }
}

// The statistics of a row copy, from its codes and scales, in double.
struct Expected {
  double error = 0, square = 0;
  uint64_t nonzero = 0, underflow = 0, clipped = 0;
  float min_scale = 0, max_scale = 0;
};

Expected DoubleStatistics(const OperandSpec& spec, const Source& source, const Bits& bits) {
  const FormatInfo& info = Info(spec.format);
  const int block_rows = spec.block.rows == kAll ? source.rows : spec.block.rows;
  const int block_cols = spec.block.cols == kAll ? source.cols : spec.block.cols;
  const Nvfp4::TensorScale tensor = Nvfp4::ForTensor(bits.amax, false);
  Expected e;
  for (int i = 0; i < source.rows * source.cols; ++i) {
    const int row = i / source.cols;
    const int col = i % source.cols;
    const int at = row / block_rows * (source.cols / block_cols) + col / block_cols;
    float scale, encode, max;
    double factor = 0;
    if (info.scale == ScaleKind::kF32) {
      std::memcpy(&scale, bits.scales.data() + 4 * at, 4);
      factor = scale;
      encode = scale == 0 ? 0 : std::min(1 / scale, std::numeric_limits<float>::max());
    } else if (info.scale == ScaleKind::kE8M0) {
      scale = E8M0::Decode(bits.scales[at]);
      factor = scale;
      encode = E8M0::Reciprocal(bits.scales[at]);
    } else {
      scale = E4M3::Decode<float>(bits.scales[at]);
      factor = static_cast<double>(scale) * bits.amax / 2688;
      encode = scale == 0 ? 0 : Nvfp4::EncodeFactor<float>(scale, tensor);
    }
    double code;
    if (info.element == Element::kE2M1) {
      code = E2M1::Decode<float>(bits.codes[i / 2] >> (i % 2 * 4) & 0xf);
      max = 6;
    } else if (info.element == Element::kE4M3) {
      code = E4M3::Decode<float>(bits.codes[i]);
      max = 448;
    } else {
      code = E5M2::Decode<float>(bits.codes[i]);
      max = 57344;
    }
    const double x = source.x[i];
    const double d = x - code * factor;
    e.error += d * d;
    e.square += x * x;
    e.nonzero += x != 0;
    e.underflow += x != 0 && code == 0;
    e.clipped += std::fabs(source.x[i] * encode) > max;
    if (scale > 0) {
      e.min_scale = e.min_scale == 0 ? scale : std::min(e.min_scale, scale);
      e.max_scale = std::max(e.max_scale, scale);
    }
  }
  return e;
}

void ExpectStatistics(CpuBackend& backend, const OperandSpec& spec, Source source) {
  SCOPED_TRACE(spec.Name());
  const Bits bits = Quantized(backend, source, {{spec}})[0];
  if (spec.hadamard.size > 0) {
    for (float& x : source.x) x = FromBits<float>(RoundToBf16Bits<float>(x));
    for (size_t i = 0; i < source.x.size(); i += spec.hadamard.size) {
      HadamardBf16<float>(&source.x[i], spec.hadamard.size, 1, Signs(spec.hadamard));
    }
  }
  const Expected e = DoubleStatistics(spec, source, bits);
  const QuantHead head = {.amax = bits.amax, .reserved = 0, .non_finite = 0, .stats = bits.stats};
  const double expected = e.error / e.square;
  EXPECT_NEAR(Finish(head, source.rows * source.cols).relative_mse, expected, 1e-6 * expected);
  EXPECT_EQ(bits.stats.nonzero, e.nonzero);
  EXPECT_EQ(bits.stats.underflow, e.underflow);
  EXPECT_EQ(bits.stats.clipped, e.clipped);
  EXPECT_EQ(bits.stats.min_scale, std::bit_cast<uint32_t>(e.min_scale));
  EXPECT_EQ(bits.stats.max_scale, std::bit_cast<uint32_t>(e.max_scale));
}

TEST(CpuStatistics, AgreeWithSumsInDouble) {
  const auto backend = Best();
  for (OperandSpec spec : EverySpec()) {
    for (const int size : {0, 16, 32}) {
      if (size > 0 && spec.block.rows > 1) continue;
      spec.hadamard.size = size;
      ExpectStatistics(*backend, spec, Normal(256, 512, 6));
    }
  }
}

TEST(CpuStatistics, AgreeForTensorsOfEveryMagnitude) {
  const auto backend = Best();
  const OperandSpec spec = OperandSpec::Of(Format::kNvfp4);
  for (const int exponent : {-120, -60, 60, 120, 126, 127}) {
    SCOPED_TRACE("amax near 2^" + std::to_string(exponent));
    std::mt19937_64 random(7);
    Source source = {64, 256, std::vector<float>(64 * 256)};
    for (float& x : source.x) {
      x = std::ldexp(1 + static_cast<float>(random() % 4096) / 4097, exponent - random() % 3);
    }
    ExpectStatistics(*backend, spec, source);
  }
}

}  // namespace
}  // namespace nibble
