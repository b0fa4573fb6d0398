#include "worker/trainer/loop/batch_feed.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/status_macros.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<BatchFeed>> BatchFeed::Create(Backend& backend, int64_t tokens) {
  std::unique_ptr<BatchFeed> feed(new BatchFeed(backend, tokens));
  const size_t bytes = sizeof(uint64_t) + static_cast<size_t>(3 * tokens) * sizeof(int32_t);
  for (Slot& slot : feed->slots_) {
    NIBBLE_ASSIGN_OR_RETURN(slot.device, backend.memory().Allocate(bytes));
    NIBBLE_ASSIGN_OR_RETURN(slot.pinned, backend.pinned().Allocate(bytes));
    NIBBLE_ASSIGN_OR_RETURN(slot.copied, backend.NewEvent());
  }
  return feed;
}

absl::StatusOr<FedBatch> BatchFeed::Load(int64_t step, const Batch& batch) {
  last_ = 1 - last_;
  Slot& slot = slots_[last_];
  NIBBLE_RETURN_IF_ERROR(backend_.Wait(*slot.copied));
  *slot.pinned.data<uint64_t>() = static_cast<uint64_t>(step);
  auto* pinned = reinterpret_cast<int32_t*>(slot.pinned.data<uint64_t>() + 1);
  std::copy(batch.tokens.begin(), batch.tokens.end(), pinned);
  std::copy(batch.targets.begin(), batch.targets.end(), pinned + tokens_);
  std::copy(batch.doc_begin.begin(), batch.doc_begin.end(), pinned + 2 * tokens_);
  Queue& compute = backend_.compute();
  NIBBLE_RETURN_IF_ERROR(
      compute.CopyIn(slot.device.data(), slot.pinned.data(), slot.device.bytes()));
  NIBBLE_RETURN_IF_ERROR(compute.Record(*slot.copied));
  const auto* first = slot.device.data<uint64_t>();
  const auto* tokens = reinterpret_cast<const int32_t*>(first + 1);
  return FedBatch{.tokens = tokens,
                  .targets = tokens + tokens_,
                  .doc_begin = tokens + 2 * tokens_,
                  .step = first,
                  .slot = last_};
}

}  // namespace nibble
