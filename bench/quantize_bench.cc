// Quantising against memcpy: every iteration times both, so that a machine whose speed drifts slows
// both. Bytes are counted once read and once written: source in, codes and scales (or the BF16
// operand) out; an amax pass of its own reads the source once more and is not counted.
//
// Columns: GB/s of that traffic, memcpy's GB/s for the same traffic on the same threads, and
// of_memcpy, the median over iterations of the ratio, with the figure it is held to where there is
// one; ns/element and memcpy_ns/element are the same times by element of the source. The rows named
// training are the calls that a training step makes: BF16 operands alone, in the source's layout,
// in the shapes of activations, gradients and weights.
#include <benchmark/benchmark.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/alternate.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/formats/bfloat16.h"

namespace nibble::bench {
namespace {

// Shape of the largest source; smaller sources are its first numbers.
constexpr int64_t kRows = 4096;
constexpr int64_t kCols = 8192;

CpuBackend& Backend() {
  static const std::unique_ptr<CpuBackend> backend = *CpuBackend::Create({});
  return *backend;
}

const std::vector<float>& Source() {
  static const std::vector<float>* source = [] {
    auto* values = new std::vector<float>(kRows * kCols);
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> some(1 << 20);
    for (float& value : some) value = normal(random);
    for (size_t i = 0; i < values->size(); ++i) {
      (*values)[i] = some[(i * 7919 + i / some.size()) % some.size()];
    }
    return values;
  }();
  return *source;
}

const std::vector<uint16_t>& SourceBf16() {
  static const std::vector<uint16_t>* source = [] {
    auto* values = new std::vector<uint16_t>;
    for (const float value : Source()) values->push_back(EncodeBf16(value));
    return values;
  }();
  return *source;
}

struct Case {
  std::string name;
  OperandSpec spec;
  bool bf16 = true;
  bool known_amax = true;
  bool row = true;
  bool column = false;
  bool emulated = false;
  bool statistics = false;
  double target = 0;  // of memcpy
  int64_t rows = kRows;
  int64_t cols = kCols;
};

QuantizedTensor MakeOutput(const Case& c, bool column) {
  OperandSpec spec = c.spec;
  if (!column && c.row && c.column) spec.hadamard.size = 0;  // as a recipe has it
  return *QuantizedTensor::Create(
      Backend().memory(),
      {.spec = spec,
       .orientation = column ? Orientation::kColumn : Orientation::kRow,
       .rows = c.rows,
       .cols = c.cols,
       .packed = !c.emulated,
       .emulated = c.emulated ? EmulatedLayout::kSource : EmulatedLayout::kNone});
}

void Run(benchmark::State& state, const Case& c) {
  const float amax = 5.5f;
  QuantizeRequest request;
  request.x = c.bf16 ? ConstMatrix::OfBf16(SourceBf16().data(), c.rows, c.cols)
                     : ConstMatrix::Of(Source().data(), c.rows, c.cols);
  const int64_t elements = c.rows * c.cols;
  int64_t traffic = elements * DTypeBytes(request.x.dtype);
  QuantizedTensor row, column;
  for (const bool is_column : {false, true}) {
    if (!(is_column ? c.column : c.row)) continue;
    QuantizedTensor& out = is_column ? column : row;
    out = MakeOutput(c, is_column);
    CopyRequest& copy = is_column ? request.column : request.row;
    copy = {.out = &out, .amax = c.known_amax ? &amax : nullptr, .random = {1, is_column, 1}};
    copy.statistics = c.statistics;
    traffic += c.emulated ? elements * 2 : out.code_bytes() + out.scale_bytes();
  }
  const Alternated times =
      AgainstMemcpy(state, Backend().pool(), traffic, [&] { return Backend().Quantize(request); });
  state.counters["ns/element"] = 1e9 * times.own / elements;
  state.counters["memcpy_ns/element"] = 1e9 * times.limit / elements;
  if (c.target > 0) state.counters["target"] = c.target;
}

OperandSpec Spec(Format format, Rounding rounding, int hadamard) {
  OperandSpec spec = OperandSpec::Of(format);
  spec.rounding = rounding;
  spec.hadamard.size = hadamard;
  return spec;
}

// Requests of a training step, amax unknown: both copies of activations and gradients from BF16,
// one of weights from FP32; the column copy is transformed where the format's recipe does so.
void AddTrainingCases(std::vector<Case>& cases) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{2048, 512}, {2048, 4096}, {4096, 1024}, {8192, 4096}}) {
    const auto add = [&](const std::string& name, const OperandSpec& spec, bool weights) {
      cases.push_back(
          {.name = "training/" + name + "/" + std::to_string(rows) + "x" + std::to_string(cols),
           .spec = spec,
           .bf16 = !weights,
           .known_amax = false,
           .column = !weights,
           .emulated = true,
           .rows = rows,
           .cols = cols});
    };
    add("nvfp4/activations", Spec(Format::kNvfp4, Rounding::kNearest, 16), false);
    add("nvfp4/gradients", Spec(Format::kNvfp4, Rounding::kStochastic, 16), false);
    OperandSpec tiles = Spec(Format::kNvfp4, Rounding::kNearest, 0);
    tiles.block = {16, 16};
    add("nvfp4/weights", tiles, true);
    if (rows != 4096) continue;
    add("mxfp4/activations", Spec(Format::kMxfp4, Rounding::kNearest, 32), false);
    add("mxfp4/gradients", Spec(Format::kMxfp4, Rounding::kStochastic, 32), false);
    for (const Format format : {Format::kMxfp8, Format::kFp8Block, Format::kFp8Tensor,
                                Format::kFp4Block128, Format::kFp4TokenChannel}) {
      add(std::string(Info(format).name) + "/activations", Spec(format, Rounding::kNearest, 0),
          false);
    }
  }
}

std::vector<Case> Cases() {
  const OperandSpec nearest = Spec(Format::kNvfp4, Rounding::kNearest, 0);
  const OperandSpec transformed = Spec(Format::kNvfp4, Rounding::kStochastic, 16);
  OperandSpec tiles = nearest;
  tiles.block = {16, 16};
  std::vector<Case> cases;
  for (const bool bf16 : {true, false}) {
    const std::string type = bf16 ? "bf16" : "f32";
    const auto add = [&](const std::string& name, Case c) {
      c.name = "nvfp4/" + type + "/" + name;
      c.bf16 = bf16;
      cases.push_back(c);
    };
    add("row/nearest/amax_known", {.spec = nearest, .target = 0.50});
    add("row/nearest/own_amax", {.spec = nearest, .known_amax = false, .target = 0.33});
    add("row/hadamard+stochastic/amax_known", {.spec = transformed, .target = 0.25});
    add("row/hadamard+stochastic/own_amax",
        {.spec = transformed, .known_amax = false, .target = 0.25});
    add("row/nearest/statistics", {.spec = nearest, .statistics = true});
    add("row/nearest/emulated", {.spec = nearest, .emulated = true});
    add("row/16x16", {.spec = tiles});
    add("column/nearest/amax_known", {.spec = nearest, .row = false, .column = true});
    add("column/hadamard+stochastic/amax_known",
        {.spec = transformed, .row = false, .column = true});
    add("row+column/hadamard+stochastic/own_amax",
        {.spec = transformed, .known_amax = false, .column = true});
    add("row+column/hadamard+stochastic/emulated",
        {.spec = transformed, .column = true, .emulated = true});
  }
  for (const FormatInfo& format : AllFormats()) {
    if (format.format == Format::kNvfp4) continue;
    cases.push_back({.name = std::string(format.name) + "/bf16/row/nearest/own_amax",
                     .spec = OperandSpec::Of(format.format),
                     .known_amax = false});
  }
  AddTrainingCases(cases);
  return cases;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("backend", nibble::bench::Backend().Name());
  for (const nibble::bench::Case& c : nibble::bench::Cases()) {
    benchmark::RegisterBenchmark(c.name.c_str(),
                                 [c](benchmark::State& state) { nibble::bench::Run(state, c); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond)
        ->MinTime(0.6);
  }
  benchmark::RunSpecifiedBenchmarks();
}
