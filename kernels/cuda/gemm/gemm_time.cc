#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "kernels/cuda/check_data.h"
#include "kernels/cuda/gemm/cuda_gemm.h"
#include "kernels/cuda/gemm/gemm_check.h"
#include "kernels/cuda/gemm/gemm_kernels.h"
#include "kernels/formats/minifloat.h"

namespace nibble {
namespace {

constexpr int64_t kPattern = int64_t{1} << 24;  // elements drawn on the host, then repeated

// Random BF16 and codes in device memory, from which operands are filled: matmuls of zeros or of
// constants run faster than those of training.
class RandomPool {
 public:
  explicit RandomPool(LayerCheck& check) : cuda_(check.cuda()) {
    std::vector<uint16_t> bf16(static_cast<size_t>(kPattern));
    FillMatrix(check.pool(), Temper::kNormal, 7, true, bf16.data(), kPattern / 4096, 4096, 4096);
    std::vector<uint8_t> codes(bf16.size());
    check.pool().ParallelFor(kPattern >> 16, [&](int64_t part, int) {
      for (size_t i = static_cast<size_t>(part) << 16; i < static_cast<size_t>(part + 1) << 16;
           ++i) {
        codes[i] = static_cast<uint8_t>(E4M3::Encode(64.0f * DecodeBf16(bf16[i])));
      }
    });
    bf16_ = *cuda_.memory().Allocate(bf16.size() * 2);
    codes_ = *cuda_.memory().Allocate(codes.size());
    check.ExpectOk("filling the pool",
                   cuda_.memory().CopyIn(bf16_.data(), bf16.data(), bf16.size() * 2));
    check.ExpectOk("filling the pool",
                   cuda_.memory().CopyIn(codes_.data(), codes.data(), codes.size()));
  }

  // `shift` bytes into the pattern, so that two operands differ.
  absl::Status FillBf16(void* to, int64_t bytes, int64_t shift) {
    return Repeat(bf16_, to, bytes, shift);
  }
  absl::Status FillCodes(void* to, int64_t bytes, int64_t shift) {
    return Repeat(codes_, to, bytes, shift);
  }

 private:
  absl::Status Repeat(const Buffer& from, void* to, int64_t bytes, int64_t shift) {
    const auto size = static_cast<int64_t>(from.bytes());
    for (int64_t done = 0; done < bytes;) {
      const int64_t part = std::min(bytes - done, size - shift);
      NIBBLE_RETURN_IF_ERROR(StatusOf(
          cudaMemcpyAsync(static_cast<char*>(to) + done, from.data<char>() + shift,
                          static_cast<size_t>(part), cudaMemcpyDeviceToDevice, cuda_.stream()),
          "cudaMemcpyAsync"));
      done += part;
      shift = 0;
    }
    return absl::OkStatus();
  }

  CudaBackend& cuda_;
  Buffer bf16_, codes_;
};

// An operand of a timed GEMM: a BF16 matrix, or a quantised copy in the form that the engine wants.
struct TimedOperand {
  Buffer data;
  ConstMatrix matrix;
  std::optional<QuantizedTensor> tensor;

  GemmSource source() const { return tensor ? GemmSource(&*tensor) : GemmSource(matrix); }
};

absl::StatusOr<TimedOperand> MakeOperand(CudaBackend& cuda, RandomPool& pool,
                                         const GemmUse::Operand& use, const OperandPlan& plan,
                                         int64_t rows, int64_t cols, int64_t shift) {
  TimedOperand out;
  CudaMemory& memory = cuda.memory();
  if (!use.spec.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(out.data, memory.Allocate(static_cast<size_t>(rows * cols * 2)));
    NIBBLE_RETURN_IF_ERROR(pool.FillBf16(out.data.data(), rows * cols * 2, shift));
    out.matrix = ConstMatrix::OfBf16(out.data.data<uint16_t>(), rows, cols);
    return out;
  }
  const bool column = use.contract == Contract::kRows;
  NIBBLE_ASSIGN_OR_RETURN(
      out.tensor, QuantizedTensor::Create(
                      memory, {.spec = *use.spec,
                               .orientation = column ? Orientation::kColumn : Orientation::kRow,
                               .rows = rows,
                               .cols = cols,
                               .packed = plan.packed,
                               .emulated = plan.emulated()}));
  QuantizedTensor& tensor = *out.tensor;
  QuantHead head;
  head.amax = 5.0f;
  NIBBLE_RETURN_IF_ERROR(memory.CopyIn(tensor.head(), &head, sizeof(head)));
  if (plan.packed) {
    NIBBLE_RETURN_IF_ERROR(pool.FillCodes(tensor.codes(), tensor.code_bytes(), shift));
    const auto scales = static_cast<size_t>(tensor.scale_bytes());
    if (tensor.format().scale == ScaleKind::kF32) {
      const std::vector<float> values(scales / sizeof(float), 0.01f);
      NIBBLE_RETURN_IF_ERROR(memory.CopyIn(tensor.scales(), values.data(), scales));
    } else {
      NIBBLE_RETURN_IF_ERROR(memory.Fill(tensor.scales(), 0x38, scales));
    }
  }
  if (plan.emulated() != EmulatedLayout::kNone) {
    NIBBLE_RETURN_IF_ERROR(pool.FillBf16(tensor.emulated(), rows * cols * 2, shift));
  }
  return out;
}

// The formats of a linear layer's three GEMMs.
struct TimedRecipe {
  std::string name;
  std::optional<OperandSpec> activation, weight, gradient;
};

struct TimedLayer {
  const char* name;
  int64_t tokens, in, out;
};

enum class Pass { kFprop, kDgrad, kWgrad };

absl::Status TimePass(LayerCheck& check, CudaGemm& gemm, RandomPool& pool,
                      const TimedRecipe& recipe, const TimedLayer& layer, Pass pass) {
  constexpr int kSets = 2;
  GemmUse use;
  int64_t rows_a = layer.tokens, cols_a, rows_b, cols_b, rows_c, cols_c;
  const char* name;
  if (pass == Pass::kFprop) {
    use = {{recipe.activation}, {recipe.weight}};
    cols_a = layer.in, rows_b = layer.out, cols_b = layer.in;
    rows_c = layer.tokens, cols_c = layer.out;
    name = "fprop";
  } else if (pass == Pass::kDgrad) {
    use = {{recipe.gradient}, {recipe.weight, DType::kBf16, Contract::kRows}};
    cols_a = layer.out, rows_b = layer.out, cols_b = layer.in;
    rows_c = layer.tokens, cols_c = layer.in;
    name = "dgrad";
  } else {
    use = {{recipe.gradient, DType::kBf16, Contract::kRows},
           {recipe.activation, DType::kBf16, Contract::kRows}};
    cols_a = layer.out, rows_b = layer.tokens, cols_b = layer.in;
    rows_c = layer.out, cols_c = layer.in;
    name = "wgrad";
  }
  const GemmPlan plan = gemm.Wants(use);
  TimedOperand a[kSets], b[kSets];
  Buffer c[kSets];
  const bool wgrad = pass == Pass::kWgrad;
  std::vector<GemmRequest> requests;
  for (int i = 0; i < kSets; ++i) {
    NIBBLE_ASSIGN_OR_RETURN(
        a[i], MakeOperand(check.cuda(), pool, use.a, plan.a, rows_a, cols_a, 1024 * (2 * i + 1)));
    NIBBLE_ASSIGN_OR_RETURN(
        b[i], MakeOperand(check.cuda(), pool, use.b, plan.b, rows_b, cols_b, 4096 * (2 * i + 3)));
    const auto bytes = static_cast<size_t>(rows_c * cols_c * (wgrad ? 4 : 2));
    NIBBLE_ASSIGN_OR_RETURN(c[i], check.cuda().memory().Allocate(bytes));
    NIBBLE_RETURN_IF_ERROR(check.cuda().memory().Fill(c[i].data(), 0, bytes));
    const MutableMatrix result = {c[i].data(), wgrad ? DType::kF32 : DType::kBf16, rows_c, cols_c,
                                  cols_c};
    GemmRequest request = {
        {a[i].source(), use.a.contract}, {b[i].source(), use.b.contract}, result};
    request.accumulate = wgrad;
    requests.push_back(request);
  }
  const double flops = 2.0 * static_cast<double>(layer.tokens) * static_cast<double>(layer.in) *
                       static_cast<double>(layer.out);
  const auto bytes_of = [](const GemmUse::Operand& operand, int64_t elements) {
    const int bits = operand.spec ? ElementBits(Info(operand.spec->format).element) : 16;
    return static_cast<double>(elements) * bits / 8;
  };
  const double bytes = bytes_of(use.a, rows_a * cols_a) + bytes_of(use.b, rows_b * cols_b) +
                       static_cast<double>(rows_c * cols_c) * (wgrad ? 8 : 2);
  check.Time(absl::StrCat(recipe.name, " ", name, " ", layer.name), bytes, flops,
             [&](int i) { return gemm.Gemm(requests[static_cast<size_t>(i % kSets)]); });
  return absl::OkStatus();
}

void TimeRecipe(LayerCheck& check, const CudaGemm::Options& options, RandomPool& pool,
                const TimedRecipe& recipe, const std::vector<TimedLayer>& layers,
                std::string& choices) {
  auto gemm = CudaGemm::Create(check.cuda(), options);
  check.ExpectOk("making a GEMM engine", gemm.status());
  if (!gemm.ok()) return;
  for (const TimedLayer& layer : layers) {
    for (const Pass pass : {Pass::kFprop, Pass::kDgrad, Pass::kWgrad}) {
      check.ExpectOk(absl::StrCat(recipe.name, " ", layer.name),
                     TimePass(check, **gemm, pool, recipe, layer, pass));
    }
  }
  choices += (*gemm)->Choices();
}

// What measuring gained, from the lines of Choices().
void PrintGains(const std::string& choices) {
  int problems = 0, changed = 0;
  double sum = 0, first_sum = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(choices, '\n'))) {
    const size_t at = line.find("; ");
    float ms, first;
    int place, of;
    if (at == std::string::npos ||
        std::sscanf(line.c_str() + at,
                    "; %f ms, number %d of %d with the same bits, the first %f ms", &ms, &place,
                    &of, &first) != 4) {
      continue;
    }
    ++problems;
    changed += place > 1;
    sum += ms, first_sum += first;
    if (first > 1.02f * ms) {
      std::printf("  %.1f %% faster than the first: %s\n", 100.0 * (first / ms - 1),
                  std::string(line, 0, line.find(" algorithm=")).c_str());
    }
  }
  std::printf(
      "algorithms measured for %d matmuls: another than the heuristics' first for %d, "
      "%.3f ms instead of %.3f in all\n",
      problems, changed, sum, first_sum);
}

// The kernels around the matmuls, by the bytes they move.
void TimeConversions(LayerCheck& check, RandomPool& pool) {
  constexpr int64_t kRows = 16384, kCols = 6144, kElements = kRows * kCols;
  CudaMemory& memory = check.cuda().memory();
  const cudaStream_t stream = check.cuda().stream();
  Buffer codes = *memory.Allocate(kElements), out = *memory.Allocate(4 * kElements);
  Buffer scales = *memory.Allocate(kElements / 16);
  check.ExpectOk("filling codes", pool.FillCodes(codes.data(), kElements, 0));
  check.ExpectOk("filling scales", memory.Fill(scales.data(), 0x38, kElements / 16));
  gpu::ExpandArgs expand;
  expand.codes = codes.data<uint8_t>();
  expand.rows = kRows;
  expand.cols = kCols;
  expand.out = out.data();
  expand.output = gpu::CodeOutput::kE4M3;
  check.Time("FP4 codes to E4M3 [16384, 6144]", 1.5 * kElements, 0,
             [&](int) { return StatusOf(gpu::LaunchExpand(expand, stream), "expand"); });
  expand.output = gpu::CodeOutput::kBf16;
  expand.scale = gpu::CodeScale::kE4M3;
  expand.scales = scales.data<uint8_t>();
  check.Time("NVFP4 to BF16 [16384, 6144]", (0.5 + 1.0 / 16 + 2) * kElements, 0,
             [&](int) { return StatusOf(gpu::LaunchExpand(expand, stream), "expand"); });
  check.Time("FP8 codes transposed [16384, 6144]", 2.0 * kElements, 0, [&](int) {
    return StatusOf(gpu::LaunchTransposeCodes(codes.data<uint8_t>(), kRows, kCols, 8,
                                              out.data<uint8_t>(), stream),
                    "transpose");
  });
  gpu::FinishArgs finish;
  finish.sums = out.data<float>();
  finish.rows = kRows;
  finish.cols = finish.sums_stride = finish.c_stride = kCols;
  Buffer c = *memory.Allocate(2 * kElements);
  finish.c = c.data();
  finish.c_bf16 = true;
  finish.a = {scales.data<float>(), 1, 1, 0};
  finish.b = {scales.data<float>(), 1, 1, 0};
  check.Time("line scales to BF16 [16384, 6144]", 6.0 * kElements, 0,
             [&](int) { return StatusOf(gpu::LaunchFinish(finish, stream), "finish"); });
  gpu::ArrangeArgs arrange;
  arrange.from = {out.data<float>(), 1, kCols / 128, 1};
  arrange.lines = kRows;
  arrange.slices = kCols / 128;
  arrange.to = c.data<float>();
  check.Time("scales per 128 of two [16384, 6144]", 2 * 8.0 * kElements / 128, 0, [&](int) {
    return StatusOf(gpu::LaunchArrange(arrange, arrange, stream), "arrange");
  });
  check.Time("alpha", 12, 0, [&](int) {
    const AlphaPart part = {AlphaPart::Kind::kNvfp4, scales.data<float>()};
    return StatusOf(gpu::LaunchAlpha(1.0f, part, part, c.data<float>(), stream), "alpha");
  });
}

}  // namespace

void TimeGemms(LayerCheck& check) {
  RandomPool pool(check);
  const auto spec = [](Format format, BlockShape block, int hadamard = 0) {
    OperandSpec result = OperandSpec::Of(format);
    result.block = block;
    result.hadamard.size = hadamard;
    return std::optional<OperandSpec>(result);
  };
  const std::vector<TimedLayer> large = {{"16384 x 2048 -> 4096", 16384, 2048, 4096},
                                         {"16384 x 2048 -> 2048", 16384, 2048, 2048},
                                         {"16384 x 2048 -> 6144", 16384, 2048, 6144},
                                         {"16384 x 6144 -> 2048", 16384, 6144, 2048}};
  const std::vector<TimedLayer> mlp(large.begin() + 2, large.end());
  const std::vector<TimedLayer> others = {
      {"4096 x 2048 -> 65536", 4096, 2048, 65536}, {"8192 x 8192 -> 8192", 8192, 8192, 8192},
      {"65536 x 768 -> 2304", 65536, 768, 2304},   {"65536 x 768 -> 768", 65536, 768, 768},
      {"65536 x 768 -> 3072", 65536, 768, 3072},   {"65536 x 3072 -> 768", 65536, 3072, 768},
      {"8192 x 768 -> 50304", 8192, 768, 50304}};
  std::string choices;
  const CudaGemm::Options usual, no_native = {.native = false}, first = {.candidates = 1};
  const TimedRecipe bf16 = {"bf16", {}, {}, {}};
  TimeRecipe(check, first, pool, {"bf16, the first algorithms", {}, {}, {}}, large, choices);
  TimeRecipe(check, usual, pool, bf16, large, choices);
  TimeRecipe(check, usual, pool, bf16, others, choices);
  const auto nvfp4 = spec(Format::kNvfp4, {1, 16});
  TimeRecipe(check, usual, pool, {"nvfp4", nvfp4, spec(Format::kNvfp4, {16, 16}), nvfp4}, large,
             choices);
  const auto e4m3 = spec(Format::kFp8Tensor, {0, 0});
  TimeRecipe(check, usual, pool, {"fp8-tensor", e4m3, e4m3, spec(Format::kFp8TensorE5m2, {0, 0})},
             large, choices);
  const TimedRecipe block = {"fp8-block", spec(Format::kFp8Block, {1, 128}),
                             spec(Format::kFp8Block, {128, 128}),
                             spec(Format::kFp8Block, {1, 128})};
  TimeRecipe(check, usual, pool, block, large, choices);
  const auto block128 = spec(Format::kFp4Block128, {1, 128});
  const auto lines = spec(Format::kFp4TokenChannel, {1, 0});
  TimeRecipe(check, usual, pool, {"fp4-block128 in fp8", block128, block128, block128}, mlp,
             choices);
  TimeRecipe(check, usual, pool, {"fp4-token-channel in fp8", lines, lines, lines}, mlp, choices);
  TimeRecipe(check, no_native, pool, {"fp4-block128 sliced", block128, block128, block128}, mlp,
             choices);
  TimeRecipe(check, no_native, pool, {"fp4-token-channel second pass", lines, lines, lines}, mlp,
             choices);
  TimeConversions(check, pool);
  PrintGains(choices);
  // All of it where the caller collects files.
  if (const char* folder = std::getenv("OUT"); folder != nullptr) {
    if (FILE* file = std::fopen(absl::StrCat(folder, "/gemm_choices.txt").c_str(), "w")) {
      std::fputs(choices.c_str(), file);
      std::fclose(file);
    }
  }
}

}  // namespace nibble
