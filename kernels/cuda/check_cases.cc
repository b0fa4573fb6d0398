#include "kernels/cuda/check_cases.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "kernels/formats/bfloat16.h"

namespace nibble {
namespace {

constexpr int kPrinted = 10;
constexpr int kCpuPoison = 0xa5;
constexpr int kCudaPoison = 0x5a;

std::string CopyName(const CheckCopy& copy, const char* which) {
  if (!copy.wanted) return "";
  constexpr const char* kLayouts[] = {"", " emulated", " emulated-copy"};
  std::string name = absl::StrCat(" ", which, "{", copy.spec.Name(), copy.packed ? " packed" : "",
                                  kLayouts[static_cast<int>(copy.emulated)]);
  if (copy.statistics) absl::StrAppend(&name, " stats");
  if (copy.amax_spelled) {
    absl::StrAppend(&name, " amax=", copy.amax_value);
  } else if (copy.amax_factor != 0) {
    absl::StrAppend(&name, " amax*", copy.amax_factor);
  }
  return name + "}";
}

}  // namespace

std::string CheckCase::Name() const {
  return absl::StrCat("seed ", seed, " [", rows, ", ", cols, "] stride ", stride, " offset ",
                      offset, bf16 ? " bf16 " : " f32 ", TemperName(temper), " at (",
                      placement.first_row, ", ", placement.first_col, ")", CopyName(row, "row"),
                      CopyName(column, "column"), naive_only ? " naive kernels" : "",
                      squared_relu ? " squared ReLU" : "");
}

namespace {

using Draw = std::function<int64_t(uint64_t)>;  // a number below the argument

OperandSpec RandomSpec(const Draw& below, bool column, bool square, uint64_t seed) {
  OperandSpec spec;
  if (below(2) == 0) {
    spec.block = square ? BlockShape{16, 16} : BlockShape{1, 16};
    spec.formula = below(3) ? FormulaVersion::kTe2_14 : FormulaVersion::kTePre2_14;
  } else {
    const auto formats = AllFormats();
    const FormatInfo& format = formats[below(formats.size())];
    spec.format = format.format;
    spec.block = format.shapes[below(format.shapes.size())];
  }
  spec.rounding = below(2) ? Rounding::kStochastic : Rounding::kNearest;
  const bool several_rows = spec.block.rows != 1 && spec.block.rows != BlockShape::kWhole;
  if (!several_rows && (column ? below(3) != 0 : below(6) == 0)) {
    spec.hadamard.size = below(2) ? 16 : 2 << below(7);
    spec.hadamard.signs = static_cast<SignChoice>(below(4));
    spec.hadamard.seed = seed;
    for (int i = 0; i < 4; ++i) {
      spec.hadamard.mask[i] = static_cast<uint32_t>(Mix(seed, 999 + static_cast<uint64_t>(i) * 91));
    }
  }
  return spec;
}

// What the lengths along and across the lines of a copy must be multiples of; all powers of two.
int64_t UnitAlong(const CheckCopy& copy) {
  const OperandSpec& spec = copy.spec;
  return std::max<int64_t>({1, spec.block.cols, spec.hadamard.size,
                            spec.rounding == Rounding::kStochastic ? 16 : 1,
                            Info(spec.format).element == Element::kE2M1 ? 2 : 1});
}
int64_t UnitAcross(const CheckCopy& copy) { return std::max<int64_t>(1, copy.spec.block.rows); }

}  // namespace

CheckCase RandomCase(uint64_t seed, int64_t largest) {
  uint64_t drawn = 0;
  const Draw below = [&](uint64_t n) { return static_cast<int64_t>(Mix(seed, drawn++) % n); };
  CheckCase check;
  check.seed = seed;
  check.temper = static_cast<Temper>(below(static_cast<uint64_t>(Temper::kCount)));
  check.bf16 = below(3) != 0;
  const int64_t which = below(4);  // row, column, both, both
  check.row.wanted = which != 1;
  check.column.wanted = which != 0;
  const bool square = below(4) == 0;
  const bool alike = below(3) != 0;
  for (CheckCopy* copy : {&check.row, &check.column}) {
    const bool column = copy == &check.column;
    copy->spec = RandomSpec(below, column, square, seed);
    if (column && alike) {
      copy->spec.rounding = check.row.spec.rounding;
      if (below(2)) copy->spec = check.row.spec;
    }
    copy->packed = below(4) != 0;
    copy->emulated = static_cast<EmulatedLayout>(copy->packed ? below(3) : 1 + below(2));
    copy->statistics = below(4) == 0;
    copy->random = {Mix(seed, 1000 + column), static_cast<uint32_t>(Mix(seed, 1002 + column)),
                    static_cast<uint32_t>(below(100000))};
    copy->device_step = below(4) == 0;
    if (below(2) == 0) {
      constexpr float kFactors[] = {1, 1, 1, 0.5f, 2, 0.015625f, 1e-9f, 1e9f};
      copy->amax_factor = kFactors[below(8)];
      copy->statistics_amax = below(3) == 0;
      if (below(12) == 0) {
        constexpr float kValues[] = {0, 1e-42f, 3e38f, std::numeric_limits<float>::infinity()};
        copy->amax_spelled = true;
        copy->amax_value = kValues[below(4)];
      }
    }
  }
  int64_t unit_rows = 1, unit_cols = 1;
  if (check.row.wanted) {
    unit_rows = UnitAcross(check.row);
    unit_cols = UnitAlong(check.row);
  }
  if (check.column.wanted) {
    unit_rows = std::max(unit_rows, UnitAlong(check.column));
    unit_cols = std::max(unit_cols, UnitAcross(check.column));
  }
  // Multiples of 16 half of the time, otherwise any size that the copies allow.
  const auto size = [&](int64_t unit) {
    const int64_t step = below(2) ? std::max<int64_t>(16, unit) : unit;
    return step * (1 + below(std::max<int64_t>(1, largest / step)));
  };
  check.rows = size(unit_rows);
  check.cols = size(unit_cols);
  constexpr int64_t kPads[] = {0, 0, 0, 8, 64, 1, 3};
  check.stride = check.cols + kPads[below(7)];
  check.offset = below(8) == 0 ? 1 + below(7) : 0;
  check.naive_only = below(5) == 0;
  if (below(2) == 0) {
    check.placement = {16 * below(1000), 16 * below(1000), 0, 0};
    check.placement.global_rows = (check.placement.first_row + check.rows + 15) / 16 * 16 + 32;
    check.placement.global_cols = (check.placement.first_col + check.cols + 15) / 16 * 16 +
                                  (below(4) == 0 ? int64_t{1} << 33 : 0);
  }
  check.squared_relu = check.bf16 && below(4) == 0;
  return check;
}

struct Checker::Pair {
  QuantizedTensor cpu;
  QuantizedTensor cuda;
  // A given amax, and one for the statistics.
  float amax[2] = {};
  Buffer cuda_amax;
  uint64_t step = 0;
  Buffer cuda_step;
  CopyRequest cpu_request;
  CopyRequest cuda_request;
  bool wanted = false;
};

absl::Status Checker::Prepare(const CheckCase& check, const CheckCopy& copy,
                              Orientation orientation, const ConstMatrix& host_x, Pair& pair) {
  pair.wanted = copy.wanted;
  if (!copy.wanted) return absl::OkStatus();
  const QuantizedTensor::Options options = {.spec = copy.spec,
                                            .orientation = orientation,
                                            .rows = check.rows,
                                            .cols = check.cols,
                                            .packed = copy.packed,
                                            .emulated = copy.emulated};
  NIBBLE_ASSIGN_OR_RETURN(pair.cpu, QuantizedTensor::Create(cpu_.memory(), options));
  NIBBLE_ASSIGN_OR_RETURN(pair.cuda, QuantizedTensor::Create(cuda_.memory(), options));
  pair.cpu_request = {.out = &pair.cpu, .random = copy.random, .statistics = copy.statistics};
  pair.cuda_request = {.out = &pair.cuda, .random = copy.random, .statistics = copy.statistics};
  if (copy.amax_factor != 0 || copy.amax_spelled) {
    // The true amax, from the CPU's own pass.
    QuantizeRequest find;
    find.x = host_x;
    (orientation == Orientation::kRow ? find.row : find.column) = pair.cpu_request;
    NIBBLE_RETURN_IF_ERROR(cpu_.Quantize(find));
    pair.amax[1] = pair.cpu.head()->amax;
    pair.amax[0] = copy.amax_spelled ? copy.amax_value : pair.amax[1] * copy.amax_factor;
    NIBBLE_ASSIGN_OR_RETURN(pair.cuda_amax, cuda_.memory().Allocate(sizeof(pair.amax)));
    NIBBLE_RETURN_IF_ERROR(
        cuda_.memory().CopyIn(pair.cuda_amax.data(), pair.amax, sizeof(pair.amax)));
    pair.cpu_request.amax = &pair.amax[0];
    pair.cuda_request.amax = pair.cuda_amax.data<float>();
    if (copy.statistics_amax) {
      pair.cpu_request.statistics_amax = &pair.amax[1];
      pair.cuda_request.statistics_amax = pair.cuda_amax.data<float>() + 1;
    }
  }
  if (copy.device_step) {
    // The upper half does not count.
    pair.step = Mix(check.seed, 77);
    NIBBLE_ASSIGN_OR_RETURN(pair.cuda_step, cuda_.memory().Allocate(sizeof(pair.step)));
    NIBBLE_RETURN_IF_ERROR(
        cuda_.memory().CopyIn(pair.cuda_step.data(), &pair.step, sizeof(pair.step)));
    pair.cpu_request.step = &pair.step;
    pair.cuda_request.step = pair.cuda_step.data<uint64_t>();
  }
  const auto poison = [&](void* cpu, void* cuda, int64_t bytes) {
    if (cpu == nullptr) return absl::OkStatus();
    std::memset(cpu, kCpuPoison, bytes);
    return cuda_.memory().Fill(cuda, kCudaPoison, bytes);
  };
  if (copy.packed) {
    NIBBLE_RETURN_IF_ERROR(poison(pair.cpu.codes(), pair.cuda.codes(), pair.cpu.code_bytes()));
    NIBBLE_RETURN_IF_ERROR(poison(pair.cpu.scales(), pair.cuda.scales(), pair.cpu.scale_bytes()));
  }
  if (copy.emulated != EmulatedLayout::kNone) {
    NIBBLE_RETURN_IF_ERROR(
        poison(pair.cpu.emulated(), pair.cuda.emulated(), 2 * check.rows * check.cols));
  }
  return poison(pair.cpu.head(), pair.cuda.head(), sizeof(QuantHead));
}

absl::Status Checker::Run(const CheckCase& check) {
  const int element = check.bf16 ? 2 : 4;
  const int64_t bytes = (check.offset + check.rows * check.stride) * element;
  std::vector<char> x(bytes);
  void* const data = x.data() + check.offset * element;
  FillMatrix(cpu_.pool(), check.temper, check.seed, check.bf16, data, check.rows, check.cols,
             check.stride);
  NIBBLE_ASSIGN_OR_RETURN(Buffer device, cuda_.memory().Allocate(bytes));
  NIBBLE_RETURN_IF_ERROR(cuda_.memory().CopyIn(device.data(), x.data(), bytes));
  if (check.squared_relu) {
    for (int64_t row = 0; row < check.rows; ++row) {
      uint16_t* const of_row = static_cast<uint16_t*>(data) + row * check.stride;
      for (int64_t col = 0; col < check.cols; ++col) {
        const float value = DecodeBf16(of_row[col]);
        const float positive = value < 0 ? 0.0f : value;
        of_row[col] = EncodeBf16(positive * positive);
      }
    }
  }
  const ConstMatrix host_x = {data, check.bf16 ? DType::kBf16 : DType::kF32, check.rows, check.cols,
                              check.stride};
  ConstMatrix cuda_x = host_x;
  cuda_x.data = device.data<char>() + check.offset * element;

  Pair row;
  Pair column;
  NIBBLE_RETURN_IF_ERROR(Prepare(check, check.row, Orientation::kRow, host_x, row));
  NIBBLE_RETURN_IF_ERROR(Prepare(check, check.column, Orientation::kColumn, host_x, column));
  NIBBLE_RETURN_IF_ERROR(
      cpu_.Quantize({host_x, check.placement, row.cpu_request, column.cpu_request}));
  cuda_.UseNaiveKernelsOnly(check.naive_only);
  absl::Status status = cuda_.Quantize(
      {cuda_x, check.placement, row.cuda_request, column.cuda_request, check.squared_relu});
  if (status.ok()) status = cuda_.Synchronize();
  if (!status.ok())
    return absl::Status(status.code(),
                        absl::StrCat(check.Name(), ": ", std::string(status.message())));
  CheckTally tally;
  tally.cases = 1;
  for (const Pair* pair : {&row, &column}) {
    if (!pair->wanted) continue;
    tally.elements += check.rows * check.cols;
    NIBBLE_RETURN_IF_ERROR(Compare(check, *pair, data, tally));
  }
  for (CheckTally* to : {&by_path_[absl::StrCat(check.bf16 ? "bf16 " : "f32  ", cuda_.LastPath())],
                         &by_temper_[TemperName(check.temper)]}) {
    to->cases += tally.cases;
    to->elements += tally.elements;
    to->differences += tally.differences;
  }
  elements_ += tally.elements;
  differences_ += tally.differences;
  return absl::OkStatus();
}

void Checker::Report(const CheckCase& check, const std::string& what) {
  static int printed = 0;
  if (printed++ >= kPrinted) return;
  std::printf("DIFFERS %s\n  %s (%s)\n", check.Name().c_str(), what.c_str(),
              cuda_.LastPath().c_str());
}

absl::Status Checker::Compare(const CheckCase& check, const Pair& pair, const void* x,
                              CheckTally& tally) {
  const QuantizedTensor& cpu = pair.cpu;
  const auto source = [&](int64_t copy_row, int64_t along) {
    const int64_t at =
        cpu.is_column() ? along * check.stride + copy_row : copy_row * check.stride + along;
    return check.bf16 ? uint32_t{static_cast<const uint16_t*>(x)[at]}
                      : BitsOf<float>(static_cast<const float*>(x)[at]);
  };
  absl::Status status;
  // Compares arrays of T; `element(i)` gives the copy coordinates of entry i's first element.
  const auto compare = [&]<class T>(const char* what, const T* ours, const T* theirs, int64_t count,
                                    auto element) {
    if (!status.ok() || count == 0) return;
    std::vector<T> got(count);
    status = cuda_.memory().CopyOut(got.data(), theirs, count * sizeof(T));
    if (!status.ok() || std::memcmp(got.data(), ours, count * sizeof(T)) == 0) return;
    bool first = true;
    for (int64_t i = 0; i < count; ++i) {
      if (got[i] == ours[i]) continue;
      ++tally.differences;
      if (!first) continue;
      first = false;
      const auto [line, along] = element(i);
      Report(check,
             absl::StrFormat("%s copy %s[%d] (copy row %d, element %d, x bits %08x): cpu %x, "
                             "cuda %x",
                             cpu.is_column() ? "column" : "row", what, i, line, along,
                             source(line, along), ours[i], got[i]));
    }
  };
  using Place = std::pair<int64_t, int64_t>;
  if (cpu.packed() && cpu.codes() != nullptr) {
    compare("codes", cpu.codes(), pair.cuda.codes(), cpu.code_bytes(), [&](int64_t i) {
      return Place(i / cpu.code_row_bytes(),
                   i % cpu.code_row_bytes() * 8 / ElementBits(cpu.format().element));
    });
    compare("scales", static_cast<const uint8_t*>(cpu.scales()),
            static_cast<const uint8_t*>(pair.cuda.scales()), cpu.scale_bytes(), [&](int64_t byte) {
              const int64_t i = byte / ScaleBytes(cpu.format().scale);
              return Place(i / cpu.scale_cols() * cpu.block_rows(),
                           i % cpu.scale_cols() * cpu.block_cols());
            });
  }
  if (cpu.emulated_layout() != EmulatedLayout::kNone) {
    const bool natural = cpu.is_column() && cpu.emulated_layout() == EmulatedLayout::kSource;
    compare("emulated", cpu.emulated(), pair.cuda.emulated(), cpu.rows() * cpu.cols(),
            [&](int64_t i) {
              return natural ? Place(i % cpu.cols(), i / cpu.cols())
                             : Place(i / cpu.copy_cols(), i % cpu.copy_cols());
            });
  }
  if (!status.ok()) return status;
  QuantHead head;
  status = cuda_.memory().CopyOut(&head, pair.cuda.head(), sizeof(head));
  const QuantHead& ours = *cpu.head();
  if (status.ok() && (BitsOf<float>(head.amax) != BitsOf<float>(ours.amax) ||
                      head.non_finite != ours.non_finite || !(head.stats == ours.stats))) {
    ++tally.differences;
    const auto text = [](const QuantHead& h) {
      const StatSums& s = h.stats;
      return absl::StrFormat(
          "amax %08x non_finite %d error %d+%d square %d+%d nonzero %d underflow "
          "%d clipped %d scales %x..%x",
          BitsOf<float>(h.amax), h.non_finite, s.error_coarse, s.error_fine, s.square_coarse,
          s.square_fine, s.nonzero, s.underflow, s.clipped, s.min_scale, s.max_scale);
    };
    Report(check, absl::StrCat(cpu.is_column() ? "column" : "row", " head: cpu ", text(ours),
                               "; cuda ", text(head)));
  }
  return status;
}

}  // namespace nibble
