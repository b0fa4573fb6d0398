// The values that a job spec's choices can have, and their names.
//
// Thread-safety: immutable tables and pure functions.
#ifndef NIBBLE_JOB_CHOICES_H_
#define NIBBLE_JOB_CHOICES_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace nibble {

enum class JobTokenizer : uint8_t { kData, kBytes, kSentencePiece, kHuggingFace };
enum class JobSplit : uint8_t { kFile, kParagraphs };
enum class JobPrecision : uint8_t { kBf16, kFp32 };
enum class JobRecompute : uint8_t { kNone, kBlocks };
enum class LrSchedule : uint8_t { kWsd, kCosine, kConstant };
enum class DecayShape : uint8_t { kLinear, kCosine, kMinusSqrt };
enum class NonFinitePolicy : uint8_t { kSkip, kPromote, kRollBack, kStop };
enum class SkipsPolicy : uint8_t { kPause, kRollBack, kFail };
enum class SpikePolicy : uint8_t { kOff, kObserve, kSkip, kPromote, kRollBack, kStop };
enum class OperandPolicy : uint8_t { kOff, kObserve, kPromote, kRollBack, kStop };
enum class JobDevice : uint8_t { kCpu, kCuda };
enum class JobProducts : uint8_t { kFastest, kNative, kEmulated };
enum class JobCollectives : uint8_t { kAuto, kNccl, kStaged };
enum class JobReduction : uint8_t { kRankOrder, kNccl };
enum class JobExchange : uint8_t { kAuto, kCopies, kNccl };
enum class JobSharding : uint8_t { kOptimizer, kGradients, kWeights };  // as plan/sharding.h
// Events of a job that can be posted; the coordinator maps its own events to them
// (server/state/entities.h).
enum class NotifyEvent : uint8_t {
  kSubmitted,
  kStarted,
  kPaused,
  kRecovering,
  kPreempted,
  kCompleted,
  kFailed,
  kCancelled,
  kRecipeChanged,
  kCheckpoint,
  kWorkerExcluded,
  kTrouble,
  kSpike,
  kGuard,
  kAlert
};

template <class E>
struct Choice {
  E value;
  std::string_view name;
};

// All choices of an enumeration, ordered by value. A value is written by the first of its names.
template <class E>
inline constexpr int kChoices = 0;

template <>
inline constexpr Choice<JobTokenizer> kChoices<JobTokenizer>[] = {
    {JobTokenizer::kData, "data"},
    {JobTokenizer::kBytes, "bytes"},
    {JobTokenizer::kSentencePiece, "sentencepiece"},
    {JobTokenizer::kHuggingFace, "huggingface"}};
template <>
inline constexpr Choice<JobSplit> kChoices<JobSplit>[] = {{JobSplit::kFile, "file"},
                                                          {JobSplit::kParagraphs, "paragraphs"}};
template <>
inline constexpr Choice<JobPrecision> kChoices<JobPrecision>[] = {{JobPrecision::kBf16, "bf16"},
                                                                  {JobPrecision::kFp32, "fp32"}};
template <>
inline constexpr Choice<JobRecompute> kChoices<JobRecompute>[] = {
    {JobRecompute::kNone, "none"}, {JobRecompute::kBlocks, "blocks"}};
template <>
inline constexpr Choice<LrSchedule> kChoices<LrSchedule>[] = {{LrSchedule::kWsd, "wsd"},
                                                              {LrSchedule::kCosine, "cosine"},
                                                              {LrSchedule::kConstant, "constant"}};
template <>
inline constexpr Choice<DecayShape> kChoices<DecayShape>[] = {
    {DecayShape::kLinear, "linear"},
    {DecayShape::kCosine, "cosine"},
    {DecayShape::kMinusSqrt, "minus-sqrt"}};
template <>
inline constexpr Choice<NonFinitePolicy> kChoices<NonFinitePolicy>[] = {
    {NonFinitePolicy::kSkip, "skip"},
    {NonFinitePolicy::kPromote, "promote"},
    {NonFinitePolicy::kRollBack, "roll_back"},
    {NonFinitePolicy::kStop, "stop"}};
template <>
inline constexpr Choice<SkipsPolicy> kChoices<SkipsPolicy>[] = {
    {SkipsPolicy::kPause, "pause"},
    {SkipsPolicy::kRollBack, "roll_back"},
    {SkipsPolicy::kFail, "fail"}};
template <>
inline constexpr Choice<SpikePolicy> kChoices<SpikePolicy>[] = {
    {SpikePolicy::kOff, "off"},
    {SpikePolicy::kObserve, "observe"},
    {SpikePolicy::kSkip, "skip"},
    {SpikePolicy::kPromote, "promote"},
    {SpikePolicy::kRollBack, "roll_back"},
    {SpikePolicy::kStop, "stop"}};
template <>
inline constexpr Choice<OperandPolicy> kChoices<OperandPolicy>[] = {
    {OperandPolicy::kOff, "off"},
    {OperandPolicy::kObserve, "observe"},
    {OperandPolicy::kPromote, "promote"},
    {OperandPolicy::kRollBack, "roll_back"},
    {OperandPolicy::kStop, "stop"}};
template <>
inline constexpr Choice<JobDevice> kChoices<JobDevice>[] = {
    {JobDevice::kCpu, "cpu"}, {JobDevice::kCuda, "cuda"}, {JobDevice::kCuda, "gpu"}};
template <>
inline constexpr Choice<JobProducts> kChoices<JobProducts>[] = {
    {JobProducts::kFastest, "fastest"},
    {JobProducts::kNative, "native"},
    {JobProducts::kEmulated, "emulated"}};
template <>
inline constexpr Choice<JobCollectives> kChoices<JobCollectives>[] = {
    {JobCollectives::kAuto, "auto"},
    {JobCollectives::kNccl, "nccl"},
    {JobCollectives::kStaged, "staged"}};
template <>
inline constexpr Choice<JobReduction> kChoices<JobReduction>[] = {
    {JobReduction::kRankOrder, "rank_order"}, {JobReduction::kNccl, "nccl"}};
template <>
inline constexpr Choice<JobExchange> kChoices<JobExchange>[] = {
    {JobExchange::kAuto, "auto"}, {JobExchange::kCopies, "copies"}, {JobExchange::kNccl, "nccl"}};
template <>
inline constexpr Choice<JobSharding> kChoices<JobSharding>[] = {
    {JobSharding::kOptimizer, "optimizer"}, {JobSharding::kOptimizer, "zero1"},
    {JobSharding::kGradients, "gradients"}, {JobSharding::kGradients, "zero2"},
    {JobSharding::kWeights, "weights"},     {JobSharding::kWeights, "zero3"}};

template <>
inline constexpr Choice<NotifyEvent> kChoices<NotifyEvent>[] = {
    {NotifyEvent::kSubmitted, "submitted"},
    {NotifyEvent::kStarted, "started"},
    {NotifyEvent::kPaused, "paused"},
    {NotifyEvent::kRecovering, "recovering"},
    {NotifyEvent::kPreempted, "preempted"},
    {NotifyEvent::kCompleted, "completed"},
    {NotifyEvent::kFailed, "failed"},
    {NotifyEvent::kCancelled, "cancelled"},
    {NotifyEvent::kRecipeChanged, "recipe_changed"},
    {NotifyEvent::kCheckpoint, "checkpoint"},
    {NotifyEvent::kWorkerExcluded, "worker_excluded"},
    {NotifyEvent::kTrouble, "trouble"},
    {NotifyEvent::kSpike, "spike"},
    {NotifyEvent::kGuard, "guard"},
    {NotifyEvent::kAlert, "alert"}};

template <class E>
std::span<const Choice<E>> ChoicesOf() {
  return kChoices<E>;
}

// "minus-sqrt"
template <class E>
std::string_view ChoiceName(E value) {
  for (const Choice<E>& choice : ChoicesOf<E>()) {
    if (choice.value == value) return choice.name;
  }
  return "unknown";
}

}  // namespace nibble

#endif  // NIBBLE_JOB_CHOICES_H_
