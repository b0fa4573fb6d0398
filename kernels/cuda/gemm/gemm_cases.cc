#include "kernels/cuda/gemm/gemm_cases.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

using testing::OperandKind;
using testing::ReferenceSum;
using testing::TestOperand;

// No GEMM gives this NaN.
constexpr uint32_t kUnwritten = 0xffc1deadu;

EmulatedLayout LayoutOf(CaseForm form, const OperandPlan& plan) {
  switch (form) {
    case CaseForm::kWanted:
      return plan.emulated();
    case CaseForm::kPackedOnly:
      return EmulatedLayout::kNone;
    case CaseForm::kEmulatedSource:
      return EmulatedLayout::kSource;
    case CaseForm::kEmulatedCopy:
      break;
  }
  return EmulatedLayout::kCopy;
}

// C on the host: [rows, cols + gap].
struct HostResult {
  HostResult(int64_t rows, int64_t cols, int64_t gap, DType dtype, bool fill)
      : rows(rows), cols(cols), stride(cols + gap), dtype(dtype) {
    for (int64_t i = 0; i < rows * stride; ++i) {
      const bool inside = fill && i % stride < cols;
      const float value = static_cast<float>(i % 13) - 6.0f;
      bf16.push_back(inside ? EncodeBf16(value) : static_cast<uint16_t>(kUnwritten >> 16));
      f32.push_back(inside ? value : BitCast<float>(kUnwritten));
    }
  }
  void* data() { return dtype == DType::kF32 ? static_cast<void*>(f32.data()) : bf16.data(); }
  size_t bytes() const { return static_cast<size_t>(rows * stride * DTypeBytes(dtype)); }
  MutableMatrix At(void* where) const { return {where, dtype, rows, cols, stride}; }
  float Value(int64_t row, int64_t col) const {
    const int64_t i = row * stride + col;
    return dtype == DType::kF32 ? f32[i] : DecodeBf16(bf16[i]);
  }
  bool SameBits(const HostResult& other, int64_t i) const {
    return dtype == DType::kF32 ? std::memcmp(&f32[i], &other.f32[i], 4) == 0
                                : bf16[i] == other.bf16[i];
  }

  int64_t rows, cols, stride;
  DType dtype;
  std::vector<float> f32;
  std::vector<uint16_t> bf16;
};

bool IsFp4(const OperandKind& kind) {
  return kind.spec && Info(kind.spec->format).element == Element::kE2M1;
}

}  // namespace

// An operand on the device.
struct GemmChecker::Device {
  std::optional<QuantizedTensor> tensor;
  Buffer data;
  ConstMatrix matrix;
  Contract contract;

  GemmOperand operand() const {
    return tensor ? GemmOperand{&*tensor, contract} : GemmOperand{matrix, contract};
  }
};

GemmChecker::GemmChecker(CudaBackend& cuda)
    : cuda_(cuda), cpu_(*CpuGemm::Create(testing::Backend2().pool(), {CpuGemm::Path::kFp32})) {}

absl::StatusOr<GemmChecker::Device> GemmChecker::Upload(const GemmOperand& host,
                                                        const OperandPlan& plan, CaseForm form) {
  Device device;
  device.contract = host.contract;
  CudaMemory& memory = cuda_.memory();
  if (!host.is_quantized()) {
    device.matrix = host.matrix();
    const auto bytes =
        static_cast<size_t>(host.rows() * host.matrix().stride * DTypeBytes(host.matrix().dtype));
    NIBBLE_ASSIGN_OR_RETURN(device.data, memory.Allocate(bytes));
    NIBBLE_RETURN_IF_ERROR(memory.CopyIn(device.data.data(), host.matrix().data, bytes));
    device.matrix.data = device.data.data();
    return device;
  }
  const QuantizedTensor& from = host.quantized();
  const EmulatedLayout emulated = LayoutOf(form, plan);
  // FP32 scales of lines and slices are only in the packed form.
  const bool fine = from.spec().block.rows != BlockShape::kWhole && !from.format().exact_in_bf16;
  const bool packed =
      form == CaseForm::kWanted ? plan.packed : fine || emulated == EmulatedLayout::kNone;
  NIBBLE_ASSIGN_OR_RETURN(device.tensor,
                          QuantizedTensor::Create(memory, {.spec = from.spec(),
                                                           .orientation = from.orientation(),
                                                           .rows = from.rows(),
                                                           .cols = from.cols(),
                                                           .packed = packed,
                                                           .emulated = emulated}));
  QuantizedTensor& to = *device.tensor;
  NIBBLE_RETURN_IF_ERROR(memory.CopyIn(to.head(), from.head(), sizeof(QuantHead)));
  if (packed) {
    NIBBLE_RETURN_IF_ERROR(
        memory.CopyIn(to.codes(), from.codes(), static_cast<size_t>(from.code_bytes())));
    NIBBLE_RETURN_IF_ERROR(
        memory.CopyIn(to.scales(), from.scales(), static_cast<size_t>(from.scale_bytes())));
  }
  if (emulated != EmulatedLayout::kNone) {
    NIBBLE_RETURN_IF_ERROR(memory.CopyIn(to.emulated(), from.emulated(),
                                         static_cast<size_t>(from.rows() * from.cols() * 2)));
  }
  return device;
}

void GemmChecker::Report(const GemmCase& check, const std::string& what) {
  if (++reports_ > 40) return;
  std::printf("FAILED  %s [%ld x %ld x %ld, form %d, %s%s, alpha %g, gap %ld]: %s\n",
              check.name.c_str(), static_cast<long>(check.m), static_cast<long>(check.n),
              static_cast<long>(check.k), static_cast<int>(check.form),
              check.c == DType::kF32 ? "f32" : "bf16", check.accumulate ? " adding" : "",
              check.alpha, static_cast<long>(check.gap), what.c_str());
}

void GemmChecker::Run(CudaGemm& gemm, const GemmCase& check, const Runner& second) {
  const absl::Status status = RunCase(gemm, check, second);
  if (status.ok()) return;
  PathTally& refused = by_path_["(refused)"];
  ++refused.cases;
  ++refused.failed;
  Report(check, std::string(status.message()));
}

absl::Status GemmChecker::RunCase(CudaGemm& gemm, const GemmCase& check, const Runner& second) {
  PathTally tally;
  const auto use = [](const OperandKind& kind, Contract contract) {
    return GemmUse::Operand{kind.spec, kind.dtype, contract};
  };
  const GemmPlan plan =
      gemm.Wants({use(check.a, check.contract_a), use(check.b, check.contract_b)});
  CpuBackend& cpu = testing::Backend2();
  const TestOperand a(cpu, check.a, {check.m, check.k, check.contract_a, check.crossed_a},
                      2 * check.seed, true, LayoutOf(check.form, plan.a));
  const TestOperand b(cpu, check.b, {check.n, check.k, check.contract_b, check.crossed_b},
                      2 * check.seed + 1, true, LayoutOf(check.form, plan.b));
  NIBBLE_ASSIGN_OR_RETURN(const Device device_a, Upload(a.operand(), plan.a, check.form));
  NIBBLE_ASSIGN_OR_RETURN(const Device device_b, Upload(b.operand(), plan.b, check.form));
  HostResult before(check.m, check.n, check.gap, check.c, check.accumulate);
  HostResult after = before, again = before;
  NIBBLE_ASSIGN_OR_RETURN(Buffer c, cuda_.memory().Allocate(before.bytes()));
  GemmRequest request = {device_a.operand(), device_b.operand(), before.At(c.data()), check.alpha,
                         check.accumulate};
  const std::string path = gemm.PathName(request);
  for (HostResult* result : {&after, &again}) {
    NIBBLE_RETURN_IF_ERROR(cuda_.memory().CopyIn(c.data(), before.data(), before.bytes()));
    const bool other = result == &again && second != nullptr;
    NIBBLE_RETURN_IF_ERROR(other ? second(request) : gemm.Gemm(request));
    NIBBLE_RETURN_IF_ERROR(cuda_.Synchronize());
    NIBBLE_RETURN_IF_ERROR(cuda_.memory().CopyOut(result->data(), c.data(), result->bytes()));
  }

  bool repeats = true, kept_gaps = true;
  for (int64_t i = 0; i < check.m * after.stride; ++i) {
    repeats = repeats && after.SameBits(again, i);
    if (i % after.stride >= check.n) kept_gaps = kept_gaps && after.SameBits(before, i);
  }
  if (!repeats) {
    ++tally.unrepeatable;
    Report(check, absl::StrCat("two runs gave different bits on ", path));
  }
  if (!kept_gaps) {
    ++tally.outside;
    Report(check, absl::StrCat("wrote between the rows of C on ", path));
  }

  const bool native_fp8 =
      path.find("native FP8") != std::string::npos && !(IsFp4(check.a) && IsFp4(check.b));
  const std::vector<ReferenceSum> sums = testing::ReferenceGemm(a, b, check.m, check.n, check.k);
  const double folded = testing::FoldedAlpha(check.alpha, a, b);
  int64_t wrong = 0;
  for (int64_t i = 0; i < check.m * check.n; ++i) {
    const int64_t row = i / check.n, col = i % check.n;
    const double got = after.Value(row, col);
    if (!std::isfinite(got)) {
      ++tally.outside;
      if (++wrong == 1) {
        Report(check, absl::StrFormat("element (%d, %d) is %g on %s", row, col, got, path));
      }
      continue;
    }
    if (i % testing::kEvery != 0) continue;
    const double added = check.accumulate ? before.Value(row, col) : 0;
    const double want = folded * sums[i].sum + added;
    const double magnitude = std::fabs(folded) * sums[i].magnitude + std::fabs(added);
    double bound = 2 * testing::ErrorBound(check.k, magnitude, want, DType::kF32);
    if (native_fp8) bound += 0x1p-11 * std::fabs(folded) * sums[i].magnitude;
    if (check.c == DType::kBf16) bound += 0x1p-8 * (std::fabs(want) + bound);
    const double error = std::fabs(got - want);
    ++tally.elements;
    tally.worst = std::max(tally.worst, error / bound);
    if (check.c == DType::kF32 && magnitude > 0) {
      tally.worst_sum = std::max(tally.worst_sum, error / magnitude);
    }
    if (error <= bound) continue;
    ++tally.outside;
    if (++wrong == 1) {
      Report(check, absl::StrFormat("element (%d, %d) is %.9g, not %.9g (bound %.3g) on %s", row,
                                    col, got, want, bound, path));
    }
  }

  // Sums of FP4 codes are exact in each slice, so the order of additions does not matter.
  if (path.find("in slices of 128") != std::string::npos && IsFp4(check.a) && IsFp4(check.b) &&
      check.a.spec->block.cols == 128 && check.b.spec->block.cols == 128) {
    HostResult expected = before;
    NIBBLE_RETURN_IF_ERROR(cpu_->Gemm(
        {a.operand(), b.operand(), expected.At(expected.data()), check.alpha, check.accumulate}));
    int64_t different = 0;
    for (int64_t i = 0; i < check.m * after.stride; ++i) {
      if (i % after.stride < check.n && !after.SameBits(expected, i)) ++different;
    }
    if (different != 0) {
      Report(check,
             absl::StrCat(different, " elements differ from the CPU engine's bits on ", path));
    }
    tally.not_cpu_bits += different;
  }

  PathTally& all = by_path_[path];
  all.cases += 1;
  all.elements += tally.elements;
  all.outside += tally.outside;
  all.unrepeatable += tally.unrepeatable;
  all.not_cpu_bits += tally.not_cpu_bits;
  all.worst = std::max(all.worst, tally.worst);
  all.worst_sum = std::max(all.worst_sum, tally.worst_sum);
  return absl::OkStatus();
}

int64_t GemmChecker::failures() const {
  int64_t count = 0;
  for (const auto& [path, tally] : by_path_) {
    count += tally.outside + tally.unrepeatable + tally.not_cpu_bits + tally.failed;
  }
  return count;
}

void GemmChecker::Print() const {
  std::printf("%-100s %5s %9s %7s %8s %6s %6s %7s %10s\n", "path", "cases", "elements", "outside",
              "unrepeat", "bits", "failed", "of bound", "of sum");
  for (const auto& [path, tally] : by_path_) {
    std::printf("%-100s %5ld %9ld %7ld %8ld %6ld %6ld %7.3f  2^%6.2f\n", path.c_str(),
                static_cast<long>(tally.cases), static_cast<long>(tally.elements),
                static_cast<long>(tally.outside), static_cast<long>(tally.unrepeatable),
                static_cast<long>(tally.not_cpu_bits), static_cast<long>(tally.failed), tally.worst,
                tally.worst_sum > 0 ? std::log2(tally.worst_sum) : -99.0);
  }
}

}  // namespace nibble
