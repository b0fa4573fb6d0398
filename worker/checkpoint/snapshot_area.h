// The memory through which a rank hands its state over to the process that stores checkpoints.
// Training waits only for one copy of the state into it.
//
// SnapshotArea is an anonymous file (memfd) that both processes map, readable by the other side
// even after the rank has died. Its size is sealed, so that neither side can truncate it:
//
//   page 0               AreaHead
//   slices               EncodeSlices of the buffers' slices
//   note                 room for kMaxNoteBytes: a checkpoint's header
//   buffers              one per slice, each at a multiple of kBufferAlign
//
// Ownership: owns the mapping and the descriptor. Thread-safety: none of its own; messages hand it
// from one side to the other (snapshot_sink.h).
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
#include "worker/checkpoint/manifest.h"

namespace nibble {

class SnapshotArea {
 public:
  static constexpr int64_t kMaxNoteBytes = int64_t{4} << 20;
  static constexpr int64_t kMaxSlicesBytes = int64_t{256} << 20;
  static constexpr int64_t kBufferAlign = 64;

  // For the rank. Every page is allocated on return, so that the first snapshot takes no longer
  // than later ones. ResourceExhausted if there is not enough memory; InvalidArgument for an
  // invalid slice.
  static absl::StatusOr<std::unique_ptr<SnapshotArea>> Create(std::vector<TensorSlice> slices);
  // For the daemon: takes over the descriptor, also on error. InvalidArgument for a file that is
  // not sealed or whose size does not match its slices.
  static absl::StatusOr<std::unique_ptr<SnapshotArea>> Adopt(int descriptor);
  ~SnapshotArea();
  SnapshotArea(const SnapshotArea&) = delete;
  SnapshotArea& operator=(const SnapshotArea&) = delete;

  int descriptor() const { return descriptor_; }
  const std::vector<TensorSlice>& slices() const { return slices_; }
  // buffers()[i]: [SliceBytes(slices()[i])]
  absl::Span<const absl::Span<std::byte>> buffers() const { return buffers_; }
  int64_t bytes() const { return bytes_; }  // of the buffers, without the gaps
  // All of it, in whole pages.
  absl::Span<std::byte> memory() const { return {memory_, static_cast<size_t>(mapped_)}; }

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
