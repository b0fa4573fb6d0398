// The memory through which a rank hands its state to the process that stores it: a file without a
// name (memfd) that both map. The rank copies into it and goes on training; the other side reads,
// also when the rank is gone.
//
//   page 0               AreaHead
//   slices               EncodeSlices of what the buffers hold
//   note                 room for kMaxNoteBytes: a checkpoint's header
//   buffers              one per slice, each at a multiple of kBufferAlign
//
// The file's size is sealed, so that neither side can take the ground from under the other.
//
// Ownership: owns its mapping and descriptor. Thread-safety: none of its own; the two sides agree
// by messages (checkpoint_link.h) on whose turn it is.
#ifndef NIBBLE_WORKER_CHECKPOINT_SNAPSHOT_AREA_H_
#define NIBBLE_WORKER_CHECKPOINT_SNAPSHOT_AREA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/checkpoint/tensor_slice.h"

namespace nibble {

class SnapshotArea {
 public:
  static constexpr int64_t kMaxNoteBytes = int64_t{4} << 20;
  static constexpr int64_t kMaxSlicesBytes = int64_t{256} << 20;
  static constexpr int64_t kBufferAlign = 64;

  // The rank's side. Every page is there on return, so that the first snapshot stalls no longer
  // than the others. ResourceExhausted where there is not enough memory; InvalidArgument for a
  // slice that is none.
  static absl::StatusOr<std::unique_ptr<SnapshotArea>> Create(std::vector<TensorSlice> slices);
  // The other side: takes the descriptor, also on error. InvalidArgument for a file that is not
  // sealed or not of the size that its slices need.
  static absl::StatusOr<std::unique_ptr<SnapshotArea>> Adopt(int descriptor);
  ~SnapshotArea();
  SnapshotArea(const SnapshotArea&) = delete;
  SnapshotArea& operator=(const SnapshotArea&) = delete;

  int descriptor() const { return descriptor_; }
  const std::vector<TensorSlice>& slices() const { return slices_; }
  // buffers()[i]: [SliceBytes(slices()[i])]
  absl::Span<const absl::Span<std::byte>> buffers() const { return buffers_; }
  int64_t bytes() const { return bytes_; }  // of the buffers, gaps left out

  // InvalidArgument for more than kMaxNoteBytes.
  absl::Status SetNote(absl::string_view note);
  // A copy; `bytes` is at most kMaxNoteBytes.
  std::string Note(int64_t bytes) const;

 private:
  struct Layout;
  SnapshotArea(int descriptor, std::byte* memory, const Layout& layout,
               std::vector<TensorSlice> slices);

  const int descriptor_;
  std::byte* const memory_;
  const int64_t mapped_;
  const int64_t note_at_;
  const std::vector<TensorSlice> slices_;
  std::vector<absl::Span<std::byte>> buffers_;
  int64_t bytes_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_SNAPSHOT_AREA_H_
