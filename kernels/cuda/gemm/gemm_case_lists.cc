#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/gemm/gemm_cases.h"
#include "recipe/presets.h"
#include "recipe/recipe.h"
#include "recipe/testing.h"

namespace nibble {
namespace {

constexpr Contract kCols = Contract::kCols;
constexpr Contract kRows = Contract::kRows;

// Every dimension of an operand is a multiple of this.
int64_t StepOf(const testing::OperandKind& kind) {
  if (!kind.spec) return 1;
  const int64_t packing = Info(kind.spec->format).element == Element::kE2M1 ? 2 : 1;
  const int64_t random = kind.spec->rounding == Rounding::kStochastic ? 16 : 1;
  return std::max({packing, random, int64_t{kind.spec->block.rows}, int64_t{kind.spec->block.cols},
                   int64_t{kind.spec->hadamard.size}});
}

// Odd multiples of the step.
void SetShape(GemmCase& check) {
  const int64_t step = std::max(StepOf(check.a), StepOf(check.b));
  if (step >= 128) {
    check.m = 3 * step, check.n = 5 * step, check.k = 3 * step;
  } else if (step >= 16) {
    check.m = 13 * step, check.n = 17 * step, check.k = 21 * step;
  } else {
    check.m = 197 * step, check.n = 101 * step, check.k = 203 * step;
  }
}

// A shape that tensor cores' layouts take.
void SetAlignedShape(GemmCase& check) {
  const int64_t step = std::max<int64_t>(32, std::max(StepOf(check.a), StepOf(check.b)));
  check.m = 3 * step, check.n = 5 * step, check.k = 7 * step;
}

}  // namespace

std::vector<GemmCase> PresetCases() {
  std::vector<GemmCase> cases;
  // Long enough that no preset keeps all of it in BF16.
  std::string pattern;
  for (int i = 0; i < 24; ++i) pattern += "*-";
  const Outline outline = TestOutline(pattern);
  std::set<std::string> seen;
  for (const Preset& preset : AllPresets()) {
    const auto resolved = Resolve(Recipe{.preset = preset.name}, outline, 0);
    if (!resolved.ok()) continue;
    for (const LayerRecipe& layer : resolved->layers) {
      using enum OperandRole;
      const struct {
        const char* name;
        OperandRole a, b;
        Contract contract_a, contract_b;
      } gemms[] = {{"fprop", kFpropActivation, kFpropWeight, kCols, kCols},
                   {"dgrad", kDgradGradient, kDgradWeight, kCols, kRows},
                   {"wgrad", kWgradGradient, kWgradActivation, kRows, kRows}};
      for (const auto& gemm : gemms) {
        GemmCase check;
        check.a = {layer[gemm.a]};
        check.b = {layer[gemm.b]};
        check.name = absl::StrCat(preset.name, " ", gemm.name);
        if (!seen.insert(absl::StrCat(check.name, check.a.Name(), check.b.Name())).second) continue;
        check.contract_a = gemm.contract_a;
        check.contract_b = gemm.contract_b;
        // Training: activations are BF16, weight gradients are added to in FP32.
        const bool wgrad = gemm.a == kWgradGradient;
        check.c = wgrad ? DType::kF32 : DType::kBf16;
        check.accumulate = wgrad;
        check.seed = static_cast<uint32_t>(cases.size() + 1);
        // A weight in square blocks is quantised once, for Fprop.
        check.crossed_b = gemm.b == kDgradWeight && check.b.spec &&
                          check.b.spec->block.rows == check.b.spec->block.cols;
        for (const bool aligned : {false, true}) {
          aligned ? SetAlignedShape(check) : SetShape(check);
          cases.push_back(check);
          if (!check.crossed_b) continue;
          GemmCase own = check;
          own.crossed_b = false;
          cases.push_back(own);
        }
      }
    }
  }
  return cases;
}

std::vector<GemmCase> PairCases() {
  std::vector<GemmCase> cases;
  uint32_t turn = 0;
  for (const testing::OperandKind& a : testing::AllKinds()) {
    for (const testing::OperandKind& b : testing::AllKinds()) {
      for (const auto& [contract_a, contract_b] :
           {std::pair(kCols, kCols), std::pair(kCols, kRows), std::pair(kRows, kRows)}) {
        GemmCase check;
        check.a = a;
        check.b = b;
        check.contract_a = contract_a;
        check.contract_b = contract_b;
        check.m = 128, check.n = 256, check.k = 256;
        check.form = static_cast<CaseForm>(turn % 4);
        check.c = turn % 3 == 0 ? DType::kBf16 : DType::kF32;
        check.accumulate = turn % 5 < 2;
        check.alpha = turn % 7 < 3 ? 1.0f : 0.7f;
        check.gap = turn % 11 == 0 ? 8 : 0;
        check.seed = ++turn;
        check.name = absl::StrCat(a.Name(), " x ", b.Name());
        cases.push_back(check);
      }
    }
  }
  return cases;
}

std::vector<GemmCase> EdgeCases() {
  std::vector<GemmCase> cases;
  const auto spec = [](Format format, BlockShape block) {
    testing::OperandKind kind;
    kind.spec = OperandSpec::Of(format);
    kind.spec->block = block;
    return kind;
  };
  const testing::OperandKind bf16;
  const testing::OperandKind f32 = {std::nullopt, DType::kF32};
  const testing::OperandKind rows128 = spec(Format::kFp8Block, {1, 128});
  const testing::OperandKind square128 = spec(Format::kFp8Block, {128, 128});
  const testing::OperandKind fp4_128 = spec(Format::kFp4Block128, {1, 128});
  const testing::OperandKind line = spec(Format::kFp4TokenChannel, {1, 0});
  const testing::OperandKind tensor = spec(Format::kFp8Tensor, {0, 0});
  const testing::OperandKind e5m2 = spec(Format::kFp8TensorE5m2, {0, 0});
  const testing::OperandKind nvfp4_square = spec(Format::kNvfp4, {16, 16});
  const auto add = [&](const char* name, const testing::OperandKind& a,
                       const testing::OperandKind& b, int64_t m, int64_t n, int64_t k,
                       auto&&... changes) {
    GemmCase check;
    check.name = name;
    check.a = a;
    check.b = b;
    check.m = m, check.n = n, check.k = k;
    (changes(check), ...);
    check.seed = static_cast<uint32_t>(1000 + cases.size());
    cases.push_back(check);
  };
  const auto to_bf16 = [](GemmCase& c) { c.c = DType::kBf16; };
  const auto adding = [](GemmCase& c) { c.accumulate = true, c.alpha = 0.3f; };
  const auto gap = [](GemmCase& c) { c.gap = 5; };
  const auto wide_gap = [](GemmCase& c) { c.gap = 16; };
  const auto dgrad = [](GemmCase& c) { c.contract_b = kRows; };
  const auto wgrad = [](GemmCase& c) { c.contract_a = c.contract_b = kRows; };
  const auto crossed = [](GemmCase& c) { c.crossed_a = c.crossed_b = true; };
  const auto crossed_b = [](GemmCase& c) { c.crossed_b = true; };
  const auto packed = [](GemmCase& c) { c.form = CaseForm::kPackedOnly; };

  add("tiny", bf16, bf16, 1, 1, 1);
  add("one row", bf16, bf16, 1, 333, 77, to_bf16);
  add("one column", bf16, bf16, 333, 1, 77);
  add("odd", bf16, bf16, 131, 67, 259, adding, gap);
  add("odd wgrad", bf16, bf16, 67, 131, 259, wgrad, to_bf16, gap);
  add("fp32", f32, f32, 131, 67, 259, adding, gap);
  add("fp32, bf16 result", f32, f32, 131, 67, 259, to_bf16, adding, gap);
  add("fp32 x bf16", f32, bf16, 64, 72, 80, wgrad);
  add("fp32 x slices", f32, rows128, 40, 72, 256);
  add("fp32 x lines", f32, line, 40, 72, 256, to_bf16);
  // The tensor-core kernel at the edges of its tiles, and the naive one beside it.
  add("ragged lines", fp4_128, fp4_128, 200, 136, 384, packed, adding);
  add("ragged lines, bf16", fp4_128, fp4_128, 200, 136, 384, to_bf16, gap);
  add("one slice", fp4_128, fp4_128, 8, 264, 128);
  add("two slices, wgrad", fp4_128, fp4_128, 136, 8, 256, wgrad, wide_gap);
  add("many slices", fp4_128, fp4_128, 16, 32, 1280, dgrad, adding, to_bf16);
  add("unaligned slices", fp4_128, fp4_128, 37, 50, 256, wgrad);
  add("mixed slices and lines", fp4_128, line, 72, 104, 256, adding);
  add("mixed slices and bf16", bf16, rows128, 72, 104, 256, to_bf16);
  add("mixed slices and nvfp4", nvfp4_square, rows128, 64, 104, 256);
  add("fp8-block fprop", rows128, square128, 200, 256, 384, to_bf16);
  add("fp8-block dgrad", rows128, square128, 200, 256, 640, dgrad, to_bf16);
  add("fp8-block dgrad, crossed", rows128, square128, 200, 256, 640, dgrad, to_bf16, crossed_b);
  add("fp8-block wgrad", rows128, rows128, 144, 272, 384, wgrad, adding);
  add("fp8-block, blocks on both sides", square128, square128, 128, 256, 384);
  add("fp8-block, blocks crossed", square128, square128, 256, 128, 384, wgrad, crossed);
  add("fp8-block, unfit rows", rows128, rows128, 131, 256, 256, to_bf16);
  add("fp8-block, unfit columns", rows128, rows128, 128, 252, 256, to_bf16);
  add("fp8-block x fp4-block128", rows128, fp4_128, 128, 256, 384);
  add("fp8-tensor wgrad", e5m2, tensor, 208, 336, 272, wgrad, adding);
  add("fp8-tensor, one row", tensor, tensor, 1, 336, 272, to_bf16);
  add("fp8-tensor, odd rows", tensor, tensor, 197, 336, 272, to_bf16, wide_gap);
  add("fp8-tensor, unfit", tensor, tensor, 197, 331, 203, adding, packed);
  add("fp8-tensor, unaligned result", tensor, tensor, 64, 64, 64, gap);
  add("fp8-tensor, crossed", e5m2, tensor, 200, 336, 272, dgrad, to_bf16, crossed_b);
  // Added to BF16: FP32 sums, and one rounding.
  add("bf16, bf16 adding", bf16, bf16, 128, 256, 256, to_bf16, adding);
  add("bf16, bf16 adding, bands", bf16, bf16, 600, 72, 80, to_bf16, adding, gap);
  add("bf16, bf16 adding, bands, wgrad", bf16, bf16, 600, 72, 80, to_bf16, adding, wgrad);
  add("bf16, bf16 adding, one row", bf16, bf16, 1, 256, 4096, to_bf16, adding);
  add("fp8-tensor, bf16 adding", e5m2, tensor, 208, 336, 272, to_bf16, adding);
  add("fp8-block, bf16 adding", rows128, square128, 200, 256, 384, to_bf16, adding);
  add("lines, bf16 adding", line, line, 592, 336, 272, to_bf16, adding);
  add("nvfp4, bf16 adding", nvfp4_square, nvfp4_square, 592, 336, 288, to_bf16, adding);
  add("e5m2 x e5m2", e5m2, e5m2, 64, 64, 64);
  add("fp8-tensor x bf16", tensor, bf16, 100, 60, 90, adding);
  add("lines", line, line, 200, 336, 272, adding);
  add("lines, odd", line, line, 37, 51, 66, to_bf16, gap);
  add("lines, wgrad", line, line, 200, 336, 272, wgrad, to_bf16, packed);
  add("lines x bf16", line, bf16, 200, 336, 272, to_bf16, adding);
  add("nvfp4 packed", spec(Format::kNvfp4, {1, 16}), nvfp4_square, 208, 336, 272, packed, to_bf16);
  add("nvfp4 crossed", spec(Format::kNvfp4, {1, 16}), nvfp4_square, 208, 336, 288, dgrad, packed,
      crossed_b, to_bf16);
  add("mxfp4 crossed", spec(Format::kMxfp4, {1, 32}), spec(Format::kMxfp4, {32, 32}), 224, 352, 288,
      dgrad, packed, crossed_b);
  add("mxfp4 x mxfp8", spec(Format::kMxfp4, {1, 32}), spec(Format::kMxfp8, {1, 32}), 224, 352, 288,
      adding);
  return cases;
}

}  // namespace nibble
