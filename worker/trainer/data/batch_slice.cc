#include "worker/trainer/data/batch_slice.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"

namespace nibble {
namespace {

constexpr int64_t kMaxIndex = int64_t{1} << 62;

absl::Status CheckIn(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %d, not in [%d, %d]", field, value, low, high));
}

}  // namespace

absl::StatusOr<IndexRange> SliceRange(int64_t global_sequences, const BatchSlice& slice) {
  absl::Status status = CheckIn("global_sequences", global_sequences, 1, kMaxIndex);
  // A world or a number of micro-batches above the number of sequences cannot divide it.
  if (status.ok()) status = CheckIn("world", slice.world, 1, global_sequences);
  if (status.ok()) status = CheckIn("micros", slice.micros, 1, global_sequences);
  if (status.ok()) status = CheckIn("rank", slice.rank, 0, slice.world - 1);
  if (status.ok()) status = CheckIn("micro", slice.micro, 0, slice.micros - 1);
  if (status.ok()) status = CheckIn("step", slice.step, 0, kMaxIndex / global_sequences - 1);
  if (!status.ok()) return status;
  if (global_sequences % slice.world != 0 || global_sequences / slice.world % slice.micros != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("global_sequences is %d, not a multiple of world %d times micros %d",
                        global_sequences, slice.world, slice.micros));
  }
  const int64_t count = global_sequences / slice.world / slice.micros;
  const int64_t place = (slice.rank * slice.micros + slice.micro) * count;
  return IndexRange{.first = slice.step * global_sequences + place, .count = count};
}

}  // namespace nibble
