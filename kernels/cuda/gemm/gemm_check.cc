#include "kernels/cuda/gemm/gemm_check.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/gemm/cublas_lt.h"
#include "kernels/cuda/gemm/cuda_gemm.h"
#include "kernels/cuda/gemm/gemm_cases.h"
#include "kernels/cuda/gemm/lt_matmul.h"
#include "kernels/cuda/gemm/lt_search.h"

namespace nibble {
namespace {

// Prints how many algorithms the library proposes for combinations that paths rely on.
absl::Status PrintSupport(CudaBackend& cuda) {
  NIBBLE_ASSIGN_OR_RETURN(const CublasLt* const library, LoadCublasLt());
  LtQueue queue;
  NIBBLE_RETURN_IF_ERROR(LtStatus(*library, library->Create(&queue.handle), "cublasLtCreate"));
  queue.workspace_bytes = size_t{64} << 20;
  NIBBLE_ASSIGN_OR_RETURN(const Buffer scales, cuda.memory().Allocate(1 << 20));
  struct Kind {
    const char* name;
    LtType a, b;
    LtScale scale_a, scale_b;
  };
  using enum LtType;
  using enum LtScale;
  const Kind kinds[] = {{"f32", kF32, kF32, kNone, kNone},
                        {"bf16", kBf16, kBf16, kNone, kNone},
                        {"e4m3 tensor", kE4M3, kE4M3, kTensor, kTensor},
                        {"e5m2 x e4m3 tensor", kE5M2, kE4M3, kTensor, kTensor},
                        {"e4m3 x e5m2 tensor", kE4M3, kE5M2, kTensor, kTensor},
                        {"e4m3 lines", kE4M3, kE4M3, kLines, kLines},
                        {"e4m3 slices x slices", kE4M3, kE4M3, kSlices, kSlices},
                        {"e4m3 slices x blocks", kE4M3, kE4M3, kSlices, kBlocks},
                        {"e4m3 blocks x slices", kE4M3, kE4M3, kBlocks, kSlices},
                        {"e4m3 mx", kE4M3, kE4M3, kMx, kMx},
                        {"e2m1 nvfp4", kE2M1, kE2M1, kNvfp4, kNvfp4}};
  std::printf("algorithms of cuBLASLt %zu with sums in a fixed order, of 16 asked for\n",
              library->GetVersion());
  std::printf("%-24s %6s %12s %12s %12s %12s %14s\n", "operands [1024]", "rows", "f32 set",
              "f32 add", "bf16 set", "bf16 add", "bf16 device");
  for (const Kind& kind : kinds) {
    for (const int64_t rows : {1024, 1000, 1004, 1023}) {
      std::printf("%-24s %6ld", kind.name, static_cast<long>(rows));
      for (const int variant : {0, 1, 2, 3, 4}) {
        LtProblem problem = {rows, 1024, 1024};
        problem.a = {kind.a, true, 1024, kind.scale_a};
        problem.b = {kind.b, true, 1024, kind.scale_b};
        problem.c = variant < 2 ? kF32 : kBf16;
        problem.c_stride = 1024;
        problem.accumulate = variant == 1 || variant == 3;
        problem.device_alpha = variant == 4;
        absl::StatusOr<LtMatmul> matmul = LtMatmul::Create(*library, problem);
        absl::Status status = matmul.status();
        if (status.ok()) {
          LtPointers pointers;
          pointers.a_scales = pointers.b_scales = scales.data();
          status = matmul->SetScales(pointers);
        }
        int found = 0;
        if (status.ok()) {
          const auto candidates = LtCandidates(*library, *matmul, queue, 16);
          if (candidates.ok()) found = static_cast<int>(candidates->size());
        }
        std::printf(" %12d", found);
      }
      std::printf("\n");
    }
  }
  library->Destroy(queue.handle);
  return absl::OkStatus();
}

std::unique_ptr<CudaGemm> MakeEngine(LayerCheck& check, const CudaGemm::Options& options) {
  auto gemm = CudaGemm::Create(check.cuda(), options);
  check.ExpectOk("making a GEMM engine", gemm.status());
  return gemm.ok() ? *std::move(gemm) : nullptr;
}

void CheckCases(LayerCheck& check, const char* name, const CudaGemm::Options& options,
                const std::vector<std::vector<GemmCase>>& lists) {
  const auto gemm = MakeEngine(check, options);
  if (gemm == nullptr) return;
  GemmChecker checker(check.cuda());
  size_t cases = 0;
  for (const std::vector<GemmCase>& list : lists) {
    for (const GemmCase& one : list) checker.Run(*gemm, one);
    cases += list.size();
  }
  std::printf("%s, %s: %zu cases\n", name, gemm->Name().c_str(), cases);
  checker.Print();
  check.Expect(checker.failures() == 0,
               absl::StrCat(name, ": ", checker.failures(), " elements or cases are wrong"));
}

// NaN and infinity in one line of A appear in that row of C and nowhere else.
void CheckBadNumbers(LayerCheck& check, CudaGemm& gemm) {
  constexpr int64_t kSize = 256;
  const auto normal = [&](int64_t, int64_t) { return check.Normal(); };
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    CheckTensor a(check.cuda(), kSize, kSize, [&](int64_t row, int64_t col) {
      return row == 77 && col == 100 ? bad : check.Normal();
    });
    CheckTensor b(check.cuda(), kSize, kSize, normal);
    CheckTensor c(check.cuda(), kSize, kSize);
    const auto view = [](CheckTensor& x) {
      const MutableMatrix m = x.device();
      return ConstMatrix{m.data, m.dtype, m.rows, m.cols, m.stride};
    };
    check.ExpectOk("a GEMM of bad numbers",
                   gemm.Gemm(Fprop(view(a), view(b), c.device(DType::kF32))));
    const std::vector<float> values = c.DeviceValues(DType::kF32);
    int64_t wrong = 0;
    for (int64_t i = 0; i < kSize * kSize; ++i) {
      wrong += std::isfinite(values[static_cast<size_t>(i)]) == (i / kSize == 77);
    }
    check.Expect(wrong == 0, absl::StrCat("bad numbers: ", wrong, " elements are wrong"));
  }
}

// Two engines with the same choices give the same bits.
void CheckStoredChoices(LayerCheck& check) {
  constexpr int64_t kM = 1024, kN = 768, kK = 4096;
  const auto first = MakeEngine(check, {});
  const auto second = MakeEngine(check, {.candidates = 1});
  if (first == nullptr || second == nullptr) return;
  const auto normal = [&](int64_t, int64_t) { return check.Normal(); };
  CheckTensor a(check.cuda(), kM, kK, normal), b(check.cuda(), kN, kK, normal);
  CheckTensor c(check.cuda(), kM, kN);
  const MutableMatrix ma = a.device(), mb = b.device();
  const GemmRequest request =
      Fprop(ConstMatrix{ma.data, ma.dtype, kM, kK, kK}, ConstMatrix{mb.data, mb.dtype, kN, kK, kK},
            c.device(DType::kF32));
  check.ExpectOk("a GEMM", first->Gemm(request));
  const std::vector<float> expected = c.DeviceValues(DType::kF32);
  check.ExpectOk("loading choices", second->LoadChoices(first->Choices()));
  check.ExpectOk("a GEMM with stored choices", second->Gemm(request));
  const std::vector<float> got = c.DeviceValues(DType::kF32);
  check.Expect(std::memcmp(expected.data(), got.data(), expected.size() * 4) == 0,
               "stored choices give the same bits");
  std::printf("%s", first->Choices().c_str());
}

// GEMMs whose matmul, alpha, conversion and second pass a graph must repeat.
std::vector<GemmCase> GraphCases() {
  std::vector<GemmCase> cases;
  for (GemmCase& one : EdgeCases()) {
    for (const char* name :
         {"odd wgrad", "fp32, bf16 result", "fp8-tensor wgrad", "lines, wgrad",
          "fp8-block dgrad, crossed", "nvfp4 packed", "bf16, bf16 adding", "ragged lines"}) {
      if (one.name == name) cases.push_back(one);
    }
  }
  return cases;
}

// Captures what `enqueue` enqueues, and launches it `launches` times.
absl::Status RunInGraph(cudaStream_t stream, int launches,
                        const std::function<absl::Status()>& enqueue) {
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                                  "cudaStreamBeginCapture"));
  absl::Status status = enqueue();
  cudaGraph_t graph = nullptr;
  status.Update(StatusOf(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  cudaGraphExec_t runnable = nullptr;
  if (status.ok()) {
    status = StatusOf(cudaGraphInstantiate(&runnable, graph, 0), "cudaGraphInstantiate");
  }
  for (int i = 0; i < launches && status.ok(); ++i) {
    status = StatusOf(cudaGraphLaunch(runnable, stream), "cudaGraphLaunch");
  }
  status.Update(StatusOf(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  if (runnable != nullptr) cudaGraphExecDestroy(runnable);
  if (graph != nullptr) cudaGraphDestroy(graph);
  return status;
}

// A captured GEMM gives the bits of a direct one in each replay; one that was not prepared is
// refused and leaves the capture usable.
void CheckGraphs(LayerCheck& check) {
  const auto gemm = MakeEngine(check, {});
  if (gemm == nullptr) return;
  const cudaStream_t stream = check.cuda().stream();
  GemmChecker checker(check.cuda());
  for (const GemmCase& one : GraphCases()) {
    checker.Run(*gemm, one, [&](const GemmRequest& request) {
      return RunInGraph(stream, request.accumulate ? 1 : 2, [&] { return gemm->Gemm(request); });
    });
  }
  const CheckTensor a(check.cuda(), 48, 80), b(check.cuda(), 56, 80), c(check.cuda(), 48, 56);
  const auto view = [](const CheckTensor& x) {
    const MutableMatrix m = x.device();
    return ConstMatrix{m.data, m.dtype, m.rows, m.cols, m.stride};
  };
  const GemmRequest request = Fprop(view(a), view(b), c.device(DType::kF32));
  absl::Status refused;
  check.ExpectOk("a capture with a GEMM that is refused", RunInGraph(stream, 0, [&] {
                   refused = gemm->Gemm(request);
                   return absl::OkStatus();
                 }));
  check.Expect(refused.code() == absl::StatusCode::kFailedPrecondition,
               absl::StrCat("a GEMM that was not prepared: ", refused.ToString()));
  check.ExpectOk("preparing a GEMM", gemm->Prepare(request));
  check.ExpectOk("capturing a prepared GEMM",
                 RunInGraph(stream, 1, [&] { return gemm->Gemm(request); }));
  std::printf("in a graph: %zu cases\n", GraphCases().size());
  checker.Print();
  check.Expect(checker.failures() == 0,
               absl::StrCat("graphs: ", checker.failures(), " cases are wrong"));
}

// Engines choose alike without being told, in this process and, as a reader compares, in others.
// The fastest algorithm gives the bits of the heuristics' first, on other data than it was chosen
// by: the GEMMs of layers of a model.
void CheckMeasuredBits(LayerCheck& check) {
  const auto measured = MakeEngine(check, {});
  const auto first = MakeEngine(check, {.candidates = 1});
  const auto by_rows =
      MakeEngine(check, {.copy_bytes = 1});  // adds by algorithms chosen on 512 rows
  if (measured == nullptr || first == nullptr || by_rows == nullptr) return;
  struct Shape {
    int64_t tokens, in, out;
  };
  int compared = 0;
  for (const Shape& shape : {Shape{4096, 2048, 4096},
                             {4096, 2048, 2048},
                             {4096, 2048, 6144},
                             {4096, 6144, 2048},
                             {8192, 768, 2304},
                             {8192, 3072, 768}}) {
    const auto normal = [&](int64_t, int64_t) { return check.Normal(); };
    for (int data = 0; data < 2; ++data) {
      CheckTensor x(check.cuda(), shape.tokens, shape.in, normal);
      CheckTensor w(check.cuda(), shape.out, shape.in, normal);
      CheckTensor dy(check.cuda(), shape.tokens, shape.out, normal);
      const auto view = [](CheckTensor& tensor) {
        const MutableMatrix m = tensor.device();
        return ConstMatrix{m.data, m.dtype, m.rows, m.cols, m.stride};
      };
      CheckTensor y(check.cuda(), shape.tokens, shape.out);
      CheckTensor dx(check.cuda(), shape.tokens, shape.in);
      CheckTensor dw(check.cuda(), shape.out, shape.in);
      const std::pair<CheckTensor*, GemmRequest> passes[] = {
          {&y, Fprop(view(x), view(w), y.device(DType::kBf16))},
          {&dx, Dgrad(view(dy), view(w), dx.device(DType::kBf16))},
          {&dw, Wgrad(view(dy), view(x), dw.device(DType::kF32))}};
      for (const auto& [result, request] : passes) {
        check.ExpectOk("the fastest algorithm", measured->Gemm(request));
        const std::vector<float> fastest = result->DeviceValues(request.c.dtype);
        check.ExpectOk("the first algorithm", first->Gemm(request));
        const std::vector<float> expected = result->DeviceValues(request.c.dtype);
        check.Expect(std::memcmp(fastest.data(), expected.data(), 4 * fastest.size()) == 0,
                     absl::StrCat("the fastest algorithm has other bits than the first for ",
                                  shape.tokens, " x ", shape.in, " -> ", shape.out));
        ++compared;
      }
      GemmRequest add = Wgrad(view(dy), view(x), dw.device(DType::kF32));
      std::vector<float> sums[2];
      for (GemmEngine* adder : {first.get(), by_rows.get()}) {
        add.accumulate = false;
        check.ExpectOk("the first algorithm", first->Gemm(add));
        add.accumulate = true;
        check.ExpectOk("adding", adder->Gemm(add));
        sums[adder == by_rows.get()] = dw.DeviceValues(DType::kF32);
      }
      check.Expect(
          std::memcmp(sums[0].data(), sums[1].data(), 4 * sums[0].size()) == 0,
          absl::StrCat("the algorithm that was chosen on some rows has other bits than the "
                       "first for ",
                       shape.in, " x ", shape.tokens, " -> ", shape.out));
      ++compared;
    }
  }
  std::printf("fastest and first algorithm: the same bits in %d GEMMs\n%s", compared,
              measured->Choices().c_str());
}

}  // namespace

void CheckGemms(LayerCheck& check, bool few) {
  if (few) {
    const auto presets = CasesOf(true, PresetCases()), edges = CasesOf(true, EdgeCases());
    CheckCases(check, "first algorithms", {}, {presets, edges});
    CheckCases(check, "everything emulated", {.native = false}, {edges});
    if (const auto gemm = MakeEngine(check, {}); gemm != nullptr) CheckBadNumbers(check, *gemm);
    return;
  }
  check.ExpectOk("asking cuBLASLt what it supports", PrintSupport(check.cuda()));
  const auto presets = PresetCases(), pairs = PairCases(), edges = EdgeCases();
  CheckCases(check, "first algorithms", {}, {presets, edges, pairs});
  CheckCases(check, "measured algorithms", {.least_measured = 1}, {presets, edges});
  CheckCases(check, "everything emulated", {.native = false}, {presets, edges});
  CheckCases(check, "everything emulated, in bands", {.native = false, .sum_bytes = 1 << 14},
             {edges});
  CheckCases(check, "no FP4 in FP8", {.fp4_in_fp8 = false}, {presets, edges});
  if (const auto gemm = MakeEngine(check, {}); gemm != nullptr) CheckBadNumbers(check, *gemm);
  CheckGraphs(check);
  CheckMeasuredBits(check);
  CheckStoredChoices(check);
}

}  // namespace nibble
