// The rank side of checkpoints, and the link to the process that stores them (CheckpointHost).
//
// Training waits only for one copy of the rank's state into shared memory (SnapshotArea), which
// CheckpointGuest reports to the host; the host then reads the memory and writes the checkpoint.
//
// SnapshotArea is an anonymous file (memfd) that both processes map, readable by the host even
// after the rank has died. Its size is sealed, so that neither side can truncate it:
//
//   page 0               AreaHead
//   slices               EncodeSlices of the buffers' slices
//   note                 room for kMaxNoteBytes: a checkpoint's header
//   buffers              one per slice, each at a multiple of kBufferAlign
//
// Messages go over a Unix socket of packets. Both processes run on one machine and are built
// together, so messages are structs, and kLinkVersion reveals a mismatch:
//
//   rank → host   kHello (with the descriptor of a SnapshotArea), then kSnapshot …
//   host → rank   an outcome for each kSnapshot, in order
//
// Ownership: a SnapshotArea owns its mapping and descriptor; a CheckpointGuest owns its area and
// connection; SendPacket and ReceivePacket borrow descriptors.
// Thread-safety: CheckpointGuest: one thread. SnapshotArea: none of its own; messages hand it from
// one side to the other.
#ifndef NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_LINK_H_
#define NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_LINK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
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
  // For the host: takes over the descriptor, also on error. InvalidArgument for a file that is not
  // sealed or whose size does not match its slices.
  static absl::StatusOr<std::unique_ptr<SnapshotArea>> Adopt(int descriptor);
  ~SnapshotArea();
  SnapshotArea(const SnapshotArea&) = delete;
  SnapshotArea& operator=(const SnapshotArea&) = delete;

  int descriptor() const { return descriptor_; }
  const std::vector<TensorSlice>& slices() const { return slices_; }
  // buffers()[i]: [SliceBytes(slices()[i])]
  absl::Span<const absl::Span<std::byte>> buffers() const { return buffers_; }
  int64_t bytes() const { return bytes_; }  // of the buffers, without the gaps

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

inline constexpr uint32_t kLinkVersion = 1;

struct RankMessage {
  enum class Kind : uint32_t { kHello = 1, kSnapshot = 2 };
  uint32_t version = kLinkVersion;
  Kind kind = Kind::kHello;
  int32_t rank = 0;
  int32_t reserved = 0;
  int64_t attempt = 0;
  int64_t step = 0;        // kSnapshot
  int64_t note_bytes = 0;  // kSnapshot: of the encoded CheckpointHeader in the area
};

struct HostMessage {
  static constexpr int kTextBytes = 2048;
  uint32_t version = kLinkVersion;
  int32_t code = 0;  // absl::StatusCode
  int64_t step = 0;
  int64_t deleted = 0;       // checkpoints that retention removed
  double write_seconds = 0;  // from the last rank's snapshot to the commit
  int32_t direct = 1;        // false: some writes went through the page cache, which is slower
  int32_t text_bytes = 0;
  char text[kTextBytes] = {};
};

// Sends the whole message, with a descriptor if `passed` is not negative. Unavailable if the peer
// is gone. Waits for buffer space unless the socket is non-blocking.
template <class Message>
absl::Status SendPacket(int socket, const Message& message, int passed = -1);

// The next message; nullopt at the end of the stream. With `wait` false, Unavailable if none has
// arrived. *passed becomes the descriptor sent with the message, owned by the caller, or -1.
// InvalidArgument for a packet that is not a Message of this version.
template <class Message>
absl::StatusOr<std::optional<Message>> ReceivePacket(int socket, bool wait, int* passed);

extern template absl::Status SendPacket(int, const RankMessage&, int);
extern template absl::Status SendPacket(int, const HostMessage&, int);
extern template absl::StatusOr<std::optional<RankMessage>> ReceivePacket(int, bool, int*);
extern template absl::StatusOr<std::optional<HostMessage>> ReceivePacket(int, bool, int*);

class CheckpointGuest {
 public:
  using Clock = std::function<double()>;  // seconds, monotonic
  // Fills the buffers: buffers[i] gets the bytes of slice i.
  using Copy = absl::FunctionRef<absl::Status(absl::Span<const absl::Span<std::byte>> buffers)>;

  struct Options {
    std::string address;  // CheckpointHost::address()
    int32_t rank = 0;
    int64_t attempt = 1;
    std::vector<TensorSlice> slices;
    Clock clock;
  };

  struct Outcome {
    int64_t step = 0;
    absl::Status status;
    int64_t bytes = 0;  // of this rank
    int64_t deleted = 0;
    double stall_seconds = 0;  // time that training waited for the copy
    double write_seconds = 0;  // from the last rank's snapshot to the commit
    bool direct = true;
  };

  // ResourceExhausted without enough memory; Unavailable if no host listens; Aborted for a stale
  // attempt; and any error that the host reports.
  static absl::StatusOr<std::unique_ptr<CheckpointGuest>> Connect(Options options);
  ~CheckpointGuest();
  CheckpointGuest(const CheckpointGuest&) = delete;
  CheckpointGuest& operator=(const CheckpointGuest&) = delete;

  // Copies the state, and returns while the host writes it. One checkpoint at a time:
  // FailedPrecondition, naming the step, while another is in flight, and the caller decides whether
  // to retry at a later step or to wait. After an error of `copy` nothing is in flight. All ranks
  // take the same steps, with equal headers.
  absl::Status Snapshot(const CheckpointHeader& header, Copy copy);

  // The step being written.
  std::optional<int64_t> in_flight() const { return in_flight_; }
  // The outcome once it is known, nullopt before. A lost host is an outcome, too.
  std::optional<Outcome> Poll() { return Receive(false); }
  // Waits for the outcome; nullopt if nothing is in flight.
  std::optional<Outcome> Wait() { return Receive(true); }

 private:
  CheckpointGuest(Options options, std::unique_ptr<SnapshotArea> area, int socket)
      : options_(std::move(options)), area_(std::move(area)), socket_(socket) {}
  std::optional<Outcome> Receive(bool wait);

  const Options options_;
  const std::unique_ptr<SnapshotArea> area_;
  const int socket_;
  std::optional<int64_t> in_flight_;
  double stall_seconds_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_LINK_H_
