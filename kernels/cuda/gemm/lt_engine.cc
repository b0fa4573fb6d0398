#include "kernels/cuda/gemm/lt_engine.h"

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr absl::string_view kFormat = "nibble gemm choices 1";
constexpr absl::string_view kAlgorithm = " algorithm=";
constexpr size_t kAlgorithmWords = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t);

std::string AlgorithmText(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) absl::StrAppendFormat(&text, "%016x", word);
  return text;
}

bool ParseAlgorithm(absl::string_view text, cublasLtMatmulAlgo_t& algorithm) {
  if (text.size() != 16 * kAlgorithmWords) return false;
  for (size_t i = 0; i < kAlgorithmWords; ++i) {
    uint64_t word = 0;
    if (!absl::SimpleHexAtoi(text.substr(16 * i, 16), &word)) return false;
    algorithm.data[i] = word;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LtEngine>> LtEngine::Create(CudaMemory& memory, cudaStream_t stream,
                                                           const CublasLt& library,
                                                           const Options& options) {
  std::unique_ptr<LtEngine> engine(new LtEngine(memory, library, options));
  NIBBLE_RETURN_IF_ERROR(
      LtStatus(library, library.Create(&engine->queue_.handle), "cublasLtCreate"));
  NIBBLE_ASSIGN_OR_RETURN(engine->workspace_, memory.Allocate(kWorkspaceBytes));
  constexpr float kZeroAndOne[2] = {0.0f, 1.0f};
  NIBBLE_ASSIGN_OR_RETURN(engine->zero_and_one_, memory.Allocate(sizeof(kZeroAndOne)));
  NIBBLE_RETURN_IF_ERROR(
      memory.CopyIn(engine->zero_and_one_.data(), kZeroAndOne, sizeof(kZeroAndOne)));
  engine->queue_.stream = stream;
  engine->queue_.workspace = engine->workspace_.data();
  engine->queue_.workspace_bytes = kWorkspaceBytes;
  engine->queue_.zero_and_one = engine->zero_and_one_.data<float>();
  return engine;
}

LtEngine::~LtEngine() {
  if (queue_.handle != nullptr) library_.Destroy(queue_.handle);
}

absl::Status LtEngine::Run(const LtProblem& problem, const LtPointers& pointers) {
  auto planned = planned_.find(problem);
  if (planned == planned_.end()) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(cudaStreamIsCapturing(queue_.stream, &capture), "cudaStreamIsCapturing"));
    if (capture != cudaStreamCaptureStatusNone) {
      return absl::FailedPreconditionError(
          absl::StrCat("the algorithm of ", problem.Text(),
                       " cannot be chosen while a graph is captured; Prepare() the GEMM before"));
    }
    NIBBLE_ASSIGN_OR_RETURN(LtMatmul matmul, LtMatmul::Create(library_, problem));
    NIBBLE_RETURN_IF_ERROR(matmul.SetScales(pointers));
    NIBBLE_ASSIGN_OR_RETURN(const LtChoice choice, Choose(matmul, pointers));
    if (!choice.short_of_memory.empty()) {
      notices_.push_back(absl::StrCat(
          "the fastest algorithm of ", problem.Text(),
          " is not known: memory for measuring is short (", choice.short_of_memory,
          "); the one that cuBLASLt proposes first is used, which gives the same bits"));
    }
    planned = planned_.emplace(problem, Planned{std::move(matmul), choice}).first;
    stored_.erase(problem);
  }
  return planned->second.matmul.Launch(pointers, planned->second.choice.algorithm, queue_);
}

absl::StatusOr<LtChoice> LtEngine::Choose(LtMatmul& matmul, const LtPointers& pointers) {
  if (const auto stored = stored_.find(matmul.problem()); stored != stored_.end()) {
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t status = library_.MatmulAlgoCheck(
        queue_.handle, matmul.operation(), matmul.layout_a(), matmul.layout_b(), matmul.layout_c(),
        matmul.layout_c(), &stored->second, &result);
    const std::string what = absl::StrCat("the stored algorithm of ", matmul.problem().Text());
    NIBBLE_RETURN_IF_ERROR(LtStatus(library_, status, what));
    if (result.workspaceSize > queue_.workspace_bytes || !HasFixedOrder(library_, stored->second)) {
      return absl::FailedPreconditionError(absl::StrCat(
          what, " needs ", result.workspaceSize, " bytes of workspace (there are ",
          queue_.workspace_bytes, "), or does not add in a fixed order; drop it to choose anew"));
    }
    return LtChoice{stored->second};
  }
  const bool small = matmul.problem().m * matmul.problem().n < options_.least_measured;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> candidates,
                          LtCandidates(library_, matmul, queue_, small ? 1 : options_.candidates));
  if (candidates.size() == 1) return LtChoice{candidates.front()};
  return MeasureLt(library_, matmul, pointers, queue_, memory_, options_.copy_bytes, candidates);
}

std::string LtEngine::Head() const {
  return absl::StrCat(kFormat, "\ncublasLt ", library_.GetVersion(), " on ", options_.card, "\n");
}

std::string LtEngine::Choices() const {
  std::string text = Head();
  for (const auto& [problem, planned] : planned_) {
    const LtChoice& choice = planned.choice;
    absl::StrAppend(&text, problem.Text(), kAlgorithm, AlgorithmText(choice.algorithm), " # ",
                    Describe(library_, choice.algorithm));
    if (choice.measured > 0) {
      absl::StrAppendFormat(&text,
                            "; %.4f ms, the heuristics' number %d, of %d with the same bits; "
                            "their first %.4f ms",
                            choice.ms, choice.place + 1, choice.measured, choice.first_ms);
      if (choice.others > 0) absl::StrAppendFormat(&text, "; %d with other bits", choice.others);
    }
    if (!choice.short_of_memory.empty()) absl::StrAppend(&text, "; not measured: memory is short");
    text += '\n';
  }
  for (const auto& [problem, algorithm] : stored_) {
    absl::StrAppend(&text, problem.Text(), kAlgorithm, AlgorithmText(algorithm), "\n");
  }
  return text;
}

absl::Status LtEngine::LoadChoices(absl::string_view text) {
  if (text.empty()) {
    return absl::FailedPreconditionError(
        "no algorithms are stored, as where a CPU trained; they are chosen anew");
  }
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  const std::string head = Head();
  const std::vector<absl::string_view> own = absl::StrSplit(head, '\n');
  if (lines.size() < 2 || lines[0] != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("stored algorithms: line 1 is '", lines[0], "', not '", kFormat, "'"));
  }
  if (lines[1] != own[1]) {
    return absl::FailedPreconditionError(
        absl::StrCat("stored algorithms are of '", lines[1], "', this is '", own[1],
                     "': results would differ in their last bits; drop them to choose anew"));
  }
  std::map<LtProblem, cublasLtMatmulAlgo_t> loaded;
  for (size_t i = 2; i < lines.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(lines[i], absl::MaxSplits('#', 1));
    const absl::string_view line = absl::StripAsciiWhitespace(parts.first);
    if (line.empty()) continue;
    const size_t at = line.find(kAlgorithm);
    const auto wrong = [&](absl::string_view what) {
      return absl::InvalidArgumentError(
          absl::StrCat("stored algorithms, line ", i + 1, ": ", what));
    };
    if (at == absl::string_view::npos) return wrong("there is no 'algorithm='");
    const absl::StatusOr<LtProblem> problem = ParseLtProblem(line.substr(0, at));
    if (!problem.ok()) return wrong(problem.status().message());
    cublasLtMatmulAlgo_t algorithm;
    if (!ParseAlgorithm(line.substr(at + kAlgorithm.size()), algorithm)) {
      return wrong(
          absl::StrCat("the algorithm is not ", 16 * kAlgorithmWords, " hexadecimal digits"));
    }
    loaded[*problem] = algorithm;
  }
  for (const auto& [problem, algorithm] : loaded) {
    planned_.erase(problem);
    stored_[problem] = algorithm;
  }
  return absl::OkStatus();
}

}  // namespace nibble
