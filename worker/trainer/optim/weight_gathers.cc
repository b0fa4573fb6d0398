#include "worker/trainer/optim/weight_gathers.h"

#include <algorithm>

#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr int64_t kFp32Bytes = 4, kBf16Bytes = 2;

}  // namespace

absl::StatusOr<std::unique_ptr<WeightGathers>> WeightGathers::Create(const Device& device,
                                                                     const Parameters& parameters,
                                                                     const ShardedAdamW& optimizer,
                                                                     Collective& collective) {
  std::unique_ptr<WeightGathers> gathers(
      new WeightGathers(device, parameters, optimizer, collective));
  const Outline& outline = parameters.outline();
  gathers->bucket_of_part_.assign(static_cast<size_t>(outline.spec.blocks()) + 2, 0);
  gathers->bucket_of_part_.back() = static_cast<int64_t>(parameters.buckets().size()) - 1;
  for (size_t i = 0; i < outline.params.size(); ++i) {
    const int64_t block = outline.params[i].block;
    if (block < 0) continue;
    gathers->bucket_of_part_[block + 1] = parameters.bucket_of(static_cast<int64_t>(i));
  }
  int64_t largest = 0;
  for (const Bucket& bucket : parameters.buckets()) largest = std::max(largest, bucket.elements);
  NIBBLE_ASSIGN_OR_RETURN(gathers->messages_,
                          device.memory().Allocate(static_cast<size_t>(kFp32Bytes * largest)));
  NIBBLE_ASSIGN_OR_RETURN(gathers->packed_, device.backend.NewEvent());
  NIBBLE_ASSIGN_OR_RETURN(gathers->arrived_, device.backend.NewEvent());
  gathers->SetForms(std::vector<bool>(outline.params.size(), false));
  return gathers;
}

WeightGathers::Message WeightGathers::Plan(int64_t bucket, const std::vector<bool>& in_bf16) const {
  const Bucket& info = parameters_.buckets()[bucket];
  const int64_t part = info.elements / collective_.world();
  Message message;
  message.runs.resize(static_cast<size_t>(collective_.world()));
  std::vector<int64_t> bytes(message.runs.size(), 0);
  for (size_t i = 0; i < in_bf16.size(); ++i) {
    const auto param = static_cast<int64_t>(i);
    if (parameters_.bucket_of(param) != bucket) continue;
    // With the gap behind it.
    const bool last = i + 1 == in_bf16.size() || parameters_.bucket_of(param + 1) != bucket;
    const int64_t begin = parameters_.offset(param) - info.first;
    const int64_t end = last ? info.elements : parameters_.offset(param + 1) - info.first;
    for (int64_t rank = begin / part; rank * part < end; ++rank) {
      const int64_t from = std::max(begin, rank * part);
      const int64_t elements = std::min(end, (rank + 1) * part) - from;
      std::vector<Run>& runs = message.runs[rank];
      if (runs.empty() || runs.back().bf16 != in_bf16[i]) {
        runs.push_back({.first = from, .elements = 0, .bf16 = in_bf16[i], .at = bytes[rank]});
      }
      runs.back().elements += elements;
      bytes[rank] += elements * (in_bf16[i] ? kBf16Bytes : kFp32Bytes);
    }
  }
  message.bytes = *std::max_element(bytes.begin(), bytes.end());
  return message;
}

void WeightGathers::SetForms(const std::vector<bool>& in_bf16) {
  plans_.clear();
  for (size_t b = 0; b < parameters_.buckets().size(); ++b) {
    plans_.push_back(Plan(static_cast<int64_t>(b), in_bf16));
  }
  Forget();
}

void WeightGathers::Forget() {
  in_slot_.fill(-1);
  arriving_ = -1;
}

absl::Status WeightGathers::Pack(const Run& run, const float* from, char* message) {
  const int64_t rows = run.elements / kParameterAlign;
  if (run.bf16) {
    auto* to = reinterpret_cast<uint16_t*>(message + run.at);
    return device_.ops.elementwise().Run(
        Cast{.from = ConstMatrix::Of(from, rows, kParameterAlign),
             .to = MutableMatrix::OfBf16(to, rows, kParameterAlign)});
  }
  return device_.backend.compute().Copy(
      {.to = message + run.at,
       .from = from,
       .line_bytes = static_cast<size_t>(run.elements * kFp32Bytes)});
}

absl::Status WeightGathers::Unpack(const Run& run, const char* message, float* to) {
  const int64_t rows = run.elements / kParameterAlign;
  if (run.bf16) {
    const auto* from = reinterpret_cast<const uint16_t*>(message + run.at);
    return device_.ops.elementwise().Run(
        Cast{.from = ConstMatrix::OfBf16(from, rows, kParameterAlign),
             .to = MutableMatrix::Of(to, rows, kParameterAlign)});
  }
  return device_.backend.compute().Copy(
      {.to = to,
       .from = message + run.at,
       .line_bytes = static_cast<size_t>(run.elements * kFp32Bytes)});
}

absl::Status WeightGathers::Begin(int64_t bucket) {
  Queue& compute = device_.backend.compute();
  Queue& transfers = device_.backend.transfers();
  const Message& plan = plans_[bucket];
  const int rank = collective_.rank();
  char* const mine = messages_.data<char>() + rank * plan.bytes;
  // The previous message has been unpacked in the compute queue, unless it was forgotten.
  NIBBLE_RETURN_IF_ERROR(compute.WaitFor(*arrived_));
  const float* masters = optimizer_.weights(bucket);
  const int64_t first = rank * optimizer_.parts()[bucket].elements;
  for (const Run& run : plan.runs[rank]) {
    NIBBLE_RETURN_IF_ERROR(Pack(run, masters + run.first - first, mine));
  }
  NIBBLE_RETURN_IF_ERROR(compute.Record(*packed_));
  NIBBLE_RETURN_IF_ERROR(transfers.WaitFor(*packed_));
  NIBBLE_RETURN_IF_ERROR(collective_.AllGather(mine, messages_.data(), plan.bytes));
  NIBBLE_RETURN_IF_ERROR(transfers.Record(*arrived_));
  arriving_ = bucket;
  ++gathers_;
  bytes_sent_ += plan.bytes;
  return absl::OkStatus();
}

absl::Status WeightGathers::Use(int64_t bucket, int64_t next) {
  if (!InSlot(bucket)) {
    if (arriving_ != bucket) NIBBLE_RETURN_IF_ERROR(Begin(bucket));
    NIBBLE_RETURN_IF_ERROR(device_.backend.compute().WaitFor(*arrived_));
    const Message& plan = plans_[bucket];
    for (size_t rank = 0; rank < plan.runs.size(); ++rank) {
      const char* message = messages_.data<char>() + static_cast<int64_t>(rank) * plan.bytes;
      for (const Run& run : plan.runs[rank]) {
        NIBBLE_RETURN_IF_ERROR(
            Unpack(run, message, parameters_.bucket_weights(bucket) + run.first));
      }
    }
    in_slot_[parameters_.buckets()[bucket].weight_slot] = bucket;
    arriving_ = -1;
  }
  if (next < 0 || next == arriving_ || InSlot(next)) return absl::OkStatus();
  return Begin(next);
}

absl::Status WeightGathers::BeforeForward(int64_t part, bool then_backward) {
  const int64_t bucket = bucket_of_part_[part + 1];
  if (bucket != bucket_of_part_.back()) return Use(bucket, bucket + 1);
  const int64_t of_last_block = *(bucket_of_part_.end() - 2);
  return Use(bucket, then_backward ? of_last_block : -1);
}

absl::Status WeightGathers::BeforeBackward(int64_t part) {
  if (part < 0) return absl::OkStatus();
  const int64_t bucket = bucket_of_part_[part + 1];
  const int64_t first = bucket_of_part_[1];
  return Use(bucket, bucket == first ? -1 : bucket - 1);
}

}  // namespace nibble
