#include "kernels/cuda/bench.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/check_data.h"
#include "kernels/cuda/quantize_kernels.h"

namespace nibble {
namespace {

constexpr int kRuns = 30;
// Buffers rotate so that this many bytes are used between two uses of one, well beyond the
// second-level cache.
constexpr int64_t kRotation = int64_t{400} << 20;
constexpr int kMostSets = 64;

// Median of the device times of `run(i)`, in milliseconds.
absl::StatusOr<double> MedianTime(CudaBackend& cuda, int runs,
                                  const std::function<absl::Status(int)>& run) {
  std::vector<cudaEvent_t> events(2 * runs);
  absl::Status status;
  for (cudaEvent_t& event : events) {
    if (status.ok()) status = StatusOf(cudaEventCreate(&event), "cudaEventCreate");
  }
  for (int i = 0; i < 3 && status.ok(); ++i) status = run(i);
  for (int i = 0; i < runs && status.ok(); ++i) {
    status = StatusOf(cudaEventRecord(events[2 * i], cuda.stream()), "cudaEventRecord");
    if (status.ok()) status = run(i);
    if (status.ok()) {
      status = StatusOf(cudaEventRecord(events[2 * i + 1], cuda.stream()), "cudaEventRecord");
    }
  }
  if (status.ok()) status = cuda.Synchronize();
  std::vector<float> times(runs);
  for (int i = 0; i < runs && status.ok(); ++i) {
    status = StatusOf(cudaEventElapsedTime(&times[i], events[2 * i], events[2 * i + 1]),
                      "cudaEventElapsedTime");
  }
  for (cudaEvent_t& event : events) cudaEventDestroy(event);
  if (!status.ok()) return status;
  std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
  return times[runs / 2];
}

struct Plan {
  std::string name;
  OperandSpec spec;  // of both copies, but for what follows
  bool bf16 = true;
  bool row = false;
  bool column = false;
  bool square = false;  // blocks of 16 × 16
  bool stochastic = false;
  int hadamard = 0;  // size of the column copy's transform
  bool packed = true;
  bool emulated = false;
  bool column_emulated = true;  // false: one emulated copy serves both directions
  bool amax_only = false;
  bool whole_call = false;  // Backend::Quantize including the amax pass, not only the kernel
  bool statistics = false;
  bool general = false;  // the kernels of every format
  bool squared_relu = false;
};

std::vector<Plan> Plans() {
  std::vector<Plan> plans;
  const auto add = [&](Plan plan) { plans.push_back(std::move(plan)); };
  add({.name = "amax row", .row = true, .amax_only = true});
  add({.name = "amax row + column Hadamard",
       .row = true,
       .column = true,
       .hadamard = 16,
       .amax_only = true});
  add({.name = "row nearest packed", .row = true});
  add({.name = "row stochastic packed", .row = true, .stochastic = true});
  add({.name = "column Hadamard nearest packed", .column = true, .hadamard = 16});
  add({.name = "column Hadamard stochastic packed",
       .column = true,
       .stochastic = true,
       .hadamard = 16});
  for (const bool stochastic : {false, true}) {
    const char* rounding = stochastic ? "stochastic" : "nearest";
    add({.name = absl::StrCat("fused row + column Hadamard, ", rounding, ", packed"),
         .row = true,
         .column = true,
         .stochastic = stochastic,
         .hadamard = 16});
    add({.name = absl::StrCat("fused row + column Hadamard, ", rounding, ", emulated"),
         .row = true,
         .column = true,
         .stochastic = stochastic,
         .hadamard = 16,
         .packed = false,
         .emulated = true});
  }
  add({.name = "weights 16x16 f32, row + column packed",
       .bf16 = false,
       .row = true,
       .column = true,
       .square = true});
  add({.name = "weights 16x16 f32, one copy emulated",
       .bf16 = false,
       .row = true,
       .square = true,
       .packed = false,
       .emulated = true});
  add({.name = "weights 16x16 f32, packed and emulated",
       .bf16 = false,
       .row = true,
       .column = true,
       .square = true,
       .emulated = true,
       .column_emulated = false});
  const auto bytes = [&](Format format, BlockShape block, bool bf16, const char* what) {
    Plan plan = {.bf16 = bf16, .row = true, .column = true, .whole_call = true};
    plan.spec.format = format;
    plan.spec.block = block;
    plan.name = absl::StrCat("whole call: ", what, ", packed");
    add(plan);
    plan.packed = false;
    plan.emulated = true;
    plan.name = absl::StrCat("whole call: ", what, ", emulated");
    add(plan);
  };
  bytes(Format::kFp8Block, {1, 128}, true, "fp8-block 1x128");
  bytes(Format::kFp8Block, {128, 128}, false, "fp8-block 128x128 f32");
  bytes(Format::kFp8Tensor, {BlockShape::kWhole, BlockShape::kWhole}, true, "fp8-tensor");
  bytes(Format::kMxfp8, {1, 32}, true, "mxfp8 1x32");
  bytes(Format::kMxfp4, {32, 32}, false, "mxfp4 32x32 f32");
  for (const bool stochastic : {false, true}) {
    Plan plan = {.bf16 = true, .row = true, .column = true, .whole_call = true};
    plan.spec = OperandSpec::Of(Format::kMxfp4);
    plan.stochastic = stochastic;
    plan.hadamard = 32;
    const char* rounding = stochastic ? "stochastic" : "nearest";
    plan.name = absl::StrCat("whole call: mxfp4, Hadamard, ", rounding, ", packed");
    add(plan);
    plan.packed = false;
    plan.emulated = true;
    plan.name = absl::StrCat("whole call: mxfp4, Hadamard, ", rounding, ", emulated");
    add(plan);
    plan.general = true;
    absl::StrAppend(&plan.name, ", general");
    add(plan);
  }
  add({.name = "whole call: amax, fused stochastic packed",
       .row = true,
       .column = true,
       .stochastic = true,
       .hadamard = 16,
       .whole_call = true});
  for (const bool squared_relu : {false, true}) {
    add({.name = absl::StrCat("whole call: amax, fused nearest emulated",
                              squared_relu ? ", of the squared ReLU" : ""),
         .row = true,
         .column = true,
         .hadamard = 16,
         .packed = false,
         .emulated = true,
         .whole_call = true,
         .squared_relu = squared_relu});
  }
  add({.name = "whole call, with statistics of both copies",
       .row = true,
       .column = true,
       .stochastic = true,
       .hadamard = 16,
       .whole_call = true,
       .statistics = true});
  return plans;
}

// One set of buffers; several sets rotate.
struct Set {
  Buffer x;
  QuantizedTensor row;
  QuantizedTensor column;
  QuantizeRequest request;
  gpu::QuantizeArgs args;
};

absl::Status MakeSet(CudaBackend& cuda, const Plan& plan, int64_t rows, int64_t cols,
                     const float* amax, Set& set) {
  const auto create = [&](Orientation orientation, bool emulated) {
    QuantizedTensor::Options options;
    options.orientation = orientation;
    options.rows = rows;
    options.cols = cols;
    options.packed = plan.packed;
    if (emulated) options.emulated = EmulatedLayout::kSource;
    options.spec = plan.spec;
    if (plan.square) options.spec.block = BlockShape{16, 16};
    options.spec.rounding = plan.stochastic ? Rounding::kStochastic : Rounding::kNearest;
    if (orientation == Orientation::kColumn) options.spec.hadamard.size = plan.hadamard;
    return QuantizedTensor::Create(cuda.memory(), options);
  };
  const int64_t bytes = rows * cols * (plan.bf16 ? 2 : 4);
  NIBBLE_ASSIGN_OR_RETURN(set.x, cuda.memory().Allocate(bytes));
  set.request.x = {set.x.data(), plan.bf16 ? DType::kBf16 : DType::kF32, rows, cols, cols};
  const bool given = !plan.amax_only && !plan.whole_call;
  if (plan.row) {
    NIBBLE_ASSIGN_OR_RETURN(set.row, create(Orientation::kRow, plan.emulated));
    set.request.row = {.out = &set.row,
                       .amax = given ? amax : nullptr,
                       .random = {1, 2, 3},
                       .statistics = plan.statistics};
  }
  if (plan.column) {
    NIBBLE_ASSIGN_OR_RETURN(set.column,
                            create(Orientation::kColumn, plan.emulated && plan.column_emulated));
    set.request.column = {.out = &set.column,
                          .amax = given ? amax : nullptr,
                          .random = {1, 4, 3},
                          .statistics = plan.statistics};
  }
  set.request.squared_relu = plan.squared_relu;
  set.args = cuda.ArgsFor(set.request);
  return absl::OkStatus();
}

absl::Status RunPlan(CudaBackend& cuda, const Plan& plan, int64_t rows, int64_t cols,
                     const void* data, const float* amax, double copy_rate) {
  const double elements = static_cast<double>(rows) * static_cast<double>(cols);
  const double in = elements * (plan.bf16 ? 2 : 4);
  double out = 0;
  if (!plan.amax_only) {
    const FormatInfo& format = Info(plan.spec.format);
    const BlockShape block = plan.square ? BlockShape{16, 16} : plan.spec.block;
    const double per_scale = block.rows == BlockShape::kWhole ? elements
                                                              : static_cast<double>(block.rows) *
                                                                    static_cast<double>(block.cols);
    const double each = ElementBits(format.element) / 8.0 + ScaleBytes(format.scale) / per_scale;
    const int copies = plan.row + plan.column;
    if (plan.packed) out += copies * elements * each;
    if (plan.emulated) out += (plan.row + (plan.column && plan.column_emulated)) * elements * 2;
  }
  const int count = static_cast<int>(
      std::clamp<int64_t>(kRotation / static_cast<int64_t>(in + out) + 1, 2, kMostSets));
  std::vector<Set> sets(count);
  for (Set& set : sets) {
    NIBBLE_RETURN_IF_ERROR(MakeSet(cuda, plan, rows, cols, amax, set));
    NIBBLE_RETURN_IF_ERROR(cuda.memory().CopyIn(set.x.data(), data, static_cast<size_t>(in)));
  }
  const auto run_one = [&](int run) -> absl::Status {
    Set& set = sets[run % count];
    if (plan.whole_call) return cuda.Quantize(set.request);
    if (plan.amax_only) {
      return StatusOf(gpu::LaunchTileAmax(set.args, cuda.processors(), cuda.stream()),
                      "LaunchTileAmax");
    }
    // The scales stay prepared: all sets share the backend's figures.
    return StatusOf(gpu::LaunchTile(set.args, cuda.stream()), "LaunchTile");
  };
  cuda.UseNaiveKernelsOnly(plan.general);
  const absl::StatusOr<double> measured = MedianTime(cuda, kRuns, run_one);
  cuda.UseNaiveKernelsOnly(false);
  NIBBLE_ASSIGN_OR_RETURN(const double ms, measured);
  const double rate = (in + out) / (ms * 1e-3);
  std::printf("%-60s [%6ld, %5ld] %9.4f ms %8.1f GB/s %6.1f %%\n", plan.name.c_str(),
              static_cast<long>(rows), static_cast<long>(cols), ms, rate * 1e-9,
              100 * rate / copy_rate);
  std::fflush(stdout);
  return absl::OkStatus();
}

// Bytes read and written per second by a device-to-device copy.
absl::StatusOr<double> CopyRate(CudaBackend& cuda) {
  constexpr size_t kBytes = size_t{1} << 30;
  NIBBLE_ASSIGN_OR_RETURN(Buffer from, cuda.memory().Allocate(kBytes));
  NIBBLE_ASSIGN_OR_RETURN(Buffer to, cuda.memory().Allocate(kBytes));
  NIBBLE_RETURN_IF_ERROR(cuda.memory().Fill(from.data(), 0x3c, kBytes));
  const auto copy = [&](int) {
    return StatusOf(
        cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, cuda.stream()),
        "cudaMemcpyAsync");
  };
  NIBBLE_ASSIGN_OR_RETURN(const double ms, MedianTime(cuda, kRuns, copy));
  return 2.0 * kBytes / (ms * 1e-3);
}

}  // namespace

absl::Status RunBench(CudaBackend& cuda, ThreadPool& pool) {
  NIBBLE_ASSIGN_OR_RETURN(const double copy_rate, CopyRate(cuda));
  std::printf("%s, %d multiprocessors; copy %.1f GB/s (read + written)\n", cuda.Name().c_str(),
              cuda.processors(), copy_rate * 1e-9);
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{16384, 6144}, {4096, 2048}};
  NIBBLE_ASSIGN_OR_RETURN(Buffer amax, cuda.memory().Allocate(sizeof(float)));
  const float value = 6.5f;  // about the maximum of this many normal values
  NIBBLE_RETURN_IF_ERROR(cuda.memory().CopyIn(amax.data(), &value, sizeof(value)));
  for (const auto& [rows, cols] : kShapes) {
    std::vector<uint16_t> bf16(rows * cols);
    std::vector<float> f32(rows * cols);
    FillMatrix(pool, Temper::kNormal, 1, true, bf16.data(), rows, cols, cols);
    FillMatrix(pool, Temper::kNormal, 1, false, f32.data(), rows, cols, cols);
    for (const Plan& plan : Plans()) {
      // Prepares the figures that the kernel reads.
      Set first;
      NIBBLE_RETURN_IF_ERROR(MakeSet(cuda, plan, rows, cols, amax.data<float>(), first));
      NIBBLE_RETURN_IF_ERROR(
          StatusOf(gpu::LaunchPrepare(first.args, cuda.stream()), "LaunchPrepare"));
      NIBBLE_RETURN_IF_ERROR(cuda.Synchronize());
      const void* data = plan.bf16 ? static_cast<const void*>(bf16.data()) : f32.data();
      NIBBLE_RETURN_IF_ERROR(RunPlan(cuda, plan, rows, cols, data, amax.data<float>(), copy_rate));
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble
