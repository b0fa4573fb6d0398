#include "worker/trainer/optim/weight_gathers.h"

#include <cstddef>

#include "common/status_macros.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<WeightGathers>> WeightGathers::Create(const Device& device,
                                                                     const Parameters& parameters,
                                                                     const ShardedAdamW& optimizer,
                                                                     Collective& collective) {
  std::unique_ptr<WeightGathers> gathers(
      new WeightGathers(device, parameters, optimizer, collective));
  const Outline& outline = parameters.outline();
  const auto last = static_cast<int64_t>(parameters.buckets().size()) - 1;
  gathers->bucket_of_part_.assign(static_cast<size_t>(outline.spec.blocks()) + 2, 0);
  gathers->bucket_of_part_.back() = last;
  for (size_t i = 0; i < outline.params.size(); ++i) {
    const int64_t block = outline.params[i].block;
    if (block < 0) continue;
    gathers->bucket_of_part_[block + 1] = parameters.bucket_of(static_cast<int64_t>(i));
  }
  gathers->first_of_backward_ = gathers->bucket_of_part_[1];
  for (Slot& slot : gathers->slots_) {
    NIBBLE_ASSIGN_OR_RETURN(slot.left, device.backend.NewEvent());
    NIBBLE_ASSIGN_OR_RETURN(slot.arrived, device.backend.NewEvent());
  }
  return gathers;
}

void WeightGathers::Forget() {
  for (Slot& slot : slots_) slot.bucket = -1;
}

absl::Status WeightGathers::Begin(int64_t bucket) {
  const Bucket& info = parameters_.buckets()[bucket];
  Slot& slot = slots_[info.slot];
  if (slot.bucket == bucket) return absl::OkStatus();
  Queue& transfers = device_.backend.transfers();
  NIBBLE_RETURN_IF_ERROR(device_.backend.compute().Record(*slot.left));
  NIBBLE_RETURN_IF_ERROR(transfers.WaitFor(*slot.left));
  const int64_t bytes = optimizer_.parts()[bucket].elements * int64_t{sizeof(float)};
  NIBBLE_RETURN_IF_ERROR(
      collective_.AllGather(optimizer_.weights(bucket), parameters_.bucket_weights(bucket), bytes));
  NIBBLE_RETURN_IF_ERROR(transfers.Record(*slot.arrived));
  slot.bucket = bucket;
  ++gathers_;
  bytes_sent_ += bytes;
  return absl::OkStatus();
}

absl::Status WeightGathers::Use(int64_t bucket, int64_t next) {
  NIBBLE_RETURN_IF_ERROR(Begin(bucket));
  const Slot& slot = slots_[parameters_.buckets()[bucket].slot];
  NIBBLE_RETURN_IF_ERROR(device_.backend.compute().WaitFor(*slot.arrived));
  return next < 0 ? absl::OkStatus() : Begin(next);
}

absl::Status WeightGathers::BeforeForward(int64_t part) {
  const int64_t bucket = bucket_of_part_[part + 1];
  const bool last = bucket == bucket_of_part_.back();
  return Use(bucket, last ? -1 : bucket + 1);
}

absl::Status WeightGathers::BeforeBackward(int64_t part) {
  if (part < 0) return absl::OkStatus();
  const int64_t bucket = bucket_of_part_[part + 1];
  return Use(bucket, bucket == first_of_backward_ ? -1 : bucket - 1);
}

}  // namespace nibble
