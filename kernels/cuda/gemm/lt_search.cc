#include "kernels/cuda/gemm/lt_search.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/gemm/gemm_kernels.h"

namespace nibble {
namespace {

// The first round warms up.
constexpr int kRounds = 6;

// `otherwise`: where the library does not tell.
template <class T>
T Config(const CublasLt& library, const cublasLtMatmulAlgo_t& algorithm,
         cublasLtMatmulAlgoConfigAttributes_t attribute, T otherwise = {}) {
  T value = {};
  size_t written = 0;
  if (library.MatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value),
                                           &written) != CUBLAS_STATUS_SUCCESS) {
    return otherwise;
  }
  return value;
}

class Preference {
 public:
  explicit Preference(const CublasLt& library) : library_(library) {}

  absl::Status Create() {
    cublasLtMatmulPreference_t made = nullptr;
    NIBBLE_RETURN_IF_ERROR(LtStatus(library_, library_.MatmulPreferenceCreate(&made),
                                    "cublasLtMatmulPreferenceCreate"));
    owned_ = LtOwned<cublasLtMatmulPreference_t>(made, {library_.MatmulPreferenceDestroy});
    return absl::OkStatus();
  }
  template <class T>
  absl::Status Set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    return LtStatus(
        library_,
        library_.MatmulPreferenceSetAttribute(owned_.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
  }
  cublasLtMatmulPreference_t get() const { return owned_.get(); }

 private:
  const CublasLt& library_;
  LtOwned<cublasLtMatmulPreference_t> owned_;
};

// Start and end of every run; null where creation failed.
class Events {
 public:
  explicit Events(size_t count) : events_(count, nullptr) {
    for (cudaEvent_t& event : events_) {
      if (cudaEventCreate(&event) != cudaSuccess) event = nullptr;
    }
  }
  ~Events() {
    for (cudaEvent_t event : events_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  cudaEvent_t operator[](size_t i) const { return events_[i]; }

 private:
  std::vector<cudaEvent_t> events_;
};

float Median(std::vector<float>& times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// As many of C's first rows as have about `bytes`, in whole tiles of every algorithm.
int64_t FirstRows(const LtProblem& problem, int64_t bytes) {
  constexpr int64_t kTileRows = 512;
  const int64_t row_bytes = std::max<int64_t>(1, problem.c_stride * LtTypeBits(problem.c) / 8);
  return std::min(problem.m, std::max(kTileRows, bytes / row_bytes / kTileRows * kTileRows));
}

}  // namespace

absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> LtCandidates(const CublasLt& library,
                                                               const LtMatmul& matmul,
                                                               const LtQueue& queue, int count) {
  Preference preference(library);
  NIBBLE_RETURN_IF_ERROR(preference.Create());
  NIBBLE_RETURN_IF_ERROR(preference.Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                        static_cast<uint64_t>(queue.workspace_bytes)));
  NIBBLE_RETURN_IF_ERROR(
      preference.Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                     static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
  const auto alignment = static_cast<uint32_t>(matmul.problem().alignment);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    NIBBLE_RETURN_IF_ERROR(preference.Set(attribute, alignment));
  }

  // More than wanted, because some may be left out.
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(2 * count + 8));
  int returned = 0;
  const cublasStatus_t status = library.MatmulAlgoGetHeuristic(
      queue.handle, matmul.operation(), matmul.layout_a(), matmul.layout_b(), matmul.layout_c(),
      matmul.layout_c(), preference.get(), static_cast<int>(results.size()), results.data(),
      &returned);
  const auto none = [&](absl::string_view why) {
    return absl::UnimplementedError(
        absl::StrCat("cuBLASLt has no algorithm for ", matmul.problem().Text(), ": ", why));
  };
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return none(library.GetStatusString(status));
  NIBBLE_RETURN_IF_ERROR(LtStatus(library, status, "cublasLtMatmulAlgoGetHeuristic"));
  std::vector<cublasLtMatmulAlgo_t> candidates;
  for (int i = 0; i < returned && static_cast<int>(candidates.size()) < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > queue.workspace_bytes ||
        !HasFixedOrder(library, result.algo)) {
      continue;
    }
    candidates.push_back(result.algo);
  }
  if (candidates.empty()) {
    return none(absl::StrCat("none of ", returned, " proposed ones adds in a fixed order"));
  }
  return candidates;
}

bool HasFixedOrder(const CublasLt& library, const cublasLtMatmulAlgo_t& algorithm) {
  const auto scheme =
      Config<uint32_t>(library, algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, ~0u);
  return scheme == CUBLASLT_REDUCTION_SCHEME_NONE ||
         scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

absl::StatusOr<LtChoice> MeasureLt(const CublasLt& library, LtMatmul& whole,
                                   const LtPointers& pointers, const LtQueue& queue,
                                   CudaMemory& memory, int64_t most_copied,
                                   const std::vector<cublasLtMatmulAlgo_t>& candidates) {
  LtProblem problem = whole.problem();
  if (problem.accumulate) problem.m = FirstRows(problem, most_copied);
  std::optional<LtMatmul> first_rows;
  if (problem.m < whole.problem().m) {
    NIBBLE_ASSIGN_OR_RETURN(first_rows, LtMatmul::Create(library, problem));
  }
  LtMatmul& matmul = first_rows.has_value() ? *first_rows : whole;
  const size_t count = candidates.size();
  const LtChoice first = {.algorithm = candidates.front()};
  LtPointers run = pointers;
  Buffer copy;
  const auto copy_bytes = static_cast<size_t>(((problem.m - 1) * problem.c_stride + problem.n) *
                                              LtTypeBits(problem.c) / 8);
  std::vector<gpu::Fingerprint> prints(count);
  const size_t print_bytes = count * sizeof(gpu::Fingerprint);
  absl::StatusOr<Buffer> device_prints = memory.Allocate(print_bytes);
  if (device_prints.ok() && problem.accumulate) {
    absl::StatusOr<Buffer> allocated = memory.Allocate(copy_bytes);
    if (allocated.ok()) {
      copy = *std::move(allocated);
      run.c = copy.data();
    } else {
      device_prints = allocated.status();
    }
  }
  if (absl::IsResourceExhausted(device_prints.status())) {
    LtChoice unmeasured = first;
    unmeasured.short_of_memory = std::string(device_prints.status().message());
    return unmeasured;
  }
  NIBBLE_RETURN_IF_ERROR(device_prints.status());
  NIBBLE_RETURN_IF_ERROR(memory.Fill(device_prints->data(), 0, print_bytes));

  const Events events(2 * kRounds * count);
  std::vector<absl::Status> statuses(count);
  // Every candidate adds to the same C.
  const auto reset = [&]() -> absl::Status {
    if (!problem.accumulate) return absl::OkStatus();
    return StatusOf(
        cudaMemcpyAsync(run.c, pointers.c, copy_bytes, cudaMemcpyDeviceToDevice, queue.stream),
        "cudaMemcpyAsync");
  };
  for (size_t round = 0; round < kRounds; ++round) {
    // In turns, so that a change of the card's clock meets all of them.
    for (size_t i = 0; i < count; ++i) {
      if (!statuses[i].ok()) continue;
      if (round == 0) NIBBLE_RETURN_IF_ERROR(reset());
      const size_t event = 2 * (round * count + i);
      statuses[i] = StatusOf(cudaEventRecord(events[event], queue.stream), "cudaEventRecord");
      if (statuses[i].ok()) statuses[i] = matmul.Launch(run, candidates[i], queue);
      if (!statuses[i].ok()) continue;
      statuses[i] = StatusOf(cudaEventRecord(events[event + 1], queue.stream), "cudaEventRecord");
      if (round > 0) continue;
      NIBBLE_RETURN_IF_ERROR(
          StatusOf(gpu::LaunchFingerprint({.x = run.c,
                                           .rows = problem.m,
                                           .cols = problem.n,
                                           .stride = problem.c_stride,
                                           .bf16 = problem.c == LtType::kBf16,
                                           .out = device_prints->data<gpu::Fingerprint>() + i},
                                          queue.stream),
                   "comparing algorithms"));
    }
  }
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(cudaStreamSynchronize(queue.stream), "measuring algorithms: cudaStreamSynchronize"));
  NIBBLE_RETURN_IF_ERROR(memory.CopyOut(prints.data(), device_prints->data(), print_bytes));
  NIBBLE_RETURN_IF_ERROR(statuses.front());
  if (2 * prints.front().nonzero < static_cast<uint64_t>(problem.m * problem.n)) return first;

  LtChoice best;
  for (size_t i = 0; i < count; ++i) {
    if (!statuses[i].ok()) continue;
    if (prints[i] != prints.front()) {
      ++best.others;
      continue;
    }
    std::vector<float> times;
    for (size_t round = 1; round < kRounds; ++round) {
      const size_t event = 2 * (round * count + i);
      float ms = 0;
      NIBBLE_RETURN_IF_ERROR(StatusOf(cudaEventElapsedTime(&ms, events[event], events[event + 1]),
                                      "cudaEventElapsedTime"));
      times.push_back(ms);
    }
    const float ms = Median(times);
    if (best.measured == 0) best.first_ms = ms;
    if (best.measured == 0 || ms < 0.995f * best.ms) {
      best.algorithm = candidates[i];
      best.ms = ms;
      best.place = static_cast<int>(i);
    }
    ++best.measured;
  }
  return best;
}

std::string Describe(const CublasLt& library, const cublasLtMatmulAlgo_t& algorithm) {
  const auto id = Config<int32_t>(library, algorithm, CUBLASLT_ALGO_CONFIG_ID);
  const auto tile = Config<uint32_t>(library, algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID);
  const auto stages = Config<uint32_t>(library, algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID);
  const auto parts = Config<int32_t>(library, algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  const auto cluster = Config<uint16_t>(library, algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
  return absl::StrCat("algorithm ", id, ", tile ", tile, ", stages ", stages, ", cluster ", cluster,
                      ", ", parts, parts == 1 ? " part of K" : " parts of K");
}

}  // namespace nibble
