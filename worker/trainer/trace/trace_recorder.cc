#include "worker/trainer/trace/trace_recorder.h"

#include <algorithm>
#include <string_view>

#include "common/status_macros.h"

namespace nibble {

absl::Status TraceRecorder::Begin() {
  if (origin_ == nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(origin_, backend_.NewEvent());
  }
  marked_.clear();
  dropped_ = 0;
  host_.clear();
  problem_ = absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(backend_.Synchronize());
  NIBBLE_RETURN_IF_ERROR(backend_.compute().Record(*origin_));
  NIBBLE_RETURN_IF_ERROR(backend_.Wait(*origin_));
  origin_seconds_ = clock_();
  active_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TraceSpan>> TraceRecorder::End() {
  active_ = false;
  NIBBLE_RETURN_IF_ERROR(problem_);
  NIBBLE_RETURN_IF_ERROR(backend_.Synchronize());
  std::vector<TraceSpan> spans = std::move(host_);
  host_.clear();
  spans.reserve(spans.size() + marked_.size());
  for (const Marked& marked : marked_) {
    NIBBLE_ASSIGN_OR_RETURN(const double begin, backend_.SecondsBetween(*origin_, *marked.begin));
    NIBBLE_ASSIGN_OR_RETURN(const double seconds,
                            backend_.SecondsBetween(*marked.begin, *marked.end));
    spans.push_back({.track = marked.track,
                     .name = marked.cost.kind,
                     .begin = origin_seconds_ + begin,
                     .seconds = std::max(seconds, 0.0),
                     .flops = marked.cost.flops,
                     .bytes = marked.cost.bytes});
  }
  marked_.clear();
  return spans;
}

absl::StatusOr<std::optional<size_t>> TraceRecorder::Mark(TraceTrack track, const OpCost& cost) {
  if (marked_.size() + host_.size() >= kMostSpans) {
    ++dropped_;
    return std::nullopt;
  }
  Marked added = {.track = track, .cost = cost};
  NIBBLE_ASSIGN_OR_RETURN(added.begin, backend_.NewEvent());
  NIBBLE_ASSIGN_OR_RETURN(added.end, backend_.NewEvent());
  marked_.push_back(std::move(added));
  return marked_.size() - 1;
}

absl::Status TraceRecorder::Around(Queue& queue, TraceTrack track, const OpCost& cost,
                                   absl::FunctionRef<absl::Status()> enqueue) {
  if (!active_) return enqueue();
  NIBBLE_ASSIGN_OR_RETURN(const std::optional<size_t> index, Mark(track, cost));
  if (!index.has_value()) return enqueue();
  NIBBLE_RETURN_IF_ERROR(queue.Record(*marked_[*index].begin));
  NIBBLE_RETURN_IF_ERROR(enqueue());
  return queue.Record(*marked_[*index].end);
}

void TraceRecorder::Entered(const char* operation, uint64_t) {
  if (!active_ || !problem_.ok()) return;
  collective_ = operation;
  collective_at_.reset();
  collective_begin_ = clock_();
  const std::string_view name = operation;
  if (name == "Barrier" || name == "ExchangeSmall") return;
  const absl::StatusOr<std::optional<size_t>> index =
      Mark(TraceTrack::kCommunication, {.kind = operation});
  problem_ = index.status();
  if (!problem_.ok() || !index->has_value()) {
    collective_ = nullptr;
    return;
  }
  collective_at_ = **index;
  problem_ = backend_.transfers().Record(*marked_[**index].begin);
}

void TraceRecorder::Left() {
  const char* const operation = std::exchange(collective_, nullptr);
  if (!active_ || operation == nullptr || !problem_.ok()) return;
  if (collective_at_.has_value()) {
    problem_ = backend_.transfers().Record(*marked_[*collective_at_].end);
  } else {
    AddHost(operation, collective_begin_, clock_());
  }
}

absl::Status TraceRecorder::Pass(const OpCost& cost, std::function<absl::Status()> operation) {
  return Around(backend_.compute(), TraceTrack::kCompute, cost, operation);
}

void TraceRecorder::AddHost(const char* name, double begin, double end) {
  if (!active_) return;
  if (marked_.size() + host_.size() >= kMostSpans) {
    ++dropped_;
    return;
  }
  host_.push_back(
      {.track = TraceTrack::kHost, .name = name, .begin = begin, .seconds = end - begin});
}

absl::Status TracedQueue::CopyIn(void* device, const void* pinned, size_t bytes) {
  return recorder_.Around(inner_, TraceTrack::kCopies,
                          {.kind = "copy in", .bytes = static_cast<double>(bytes)},
                          [&] { return inner_.CopyIn(device, pinned, bytes); });
}

absl::Status TracedQueue::CopyOut(void* pinned, const void* device, size_t bytes) {
  return recorder_.Around(inner_, TraceTrack::kCopies,
                          {.kind = "copy out", .bytes = static_cast<double>(bytes)},
                          [&] { return inner_.CopyOut(pinned, device, bytes); });
}

absl::Status TracedQueue::Copy(const DeviceCopy& copy) {
  return recorder_.Around(
      inner_, TraceTrack::kCopies,
      {.kind = "copy", .bytes = 2.0 * static_cast<double>(copy.lines * copy.line_bytes)},
      [&] { return inner_.Copy(copy); });
}

}  // namespace nibble
