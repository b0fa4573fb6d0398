// What a rank and the process that stores its checkpoints say to each other, over a Unix socket of
// packets: the rank hands over its memory once, then says for each checkpoint that its state is in
// it; the answer comes when the checkpoint is committed or has failed.
//
//   rank → host   kHello (with the descriptor of a SnapshotArea), then kSnapshot …
//   host → rank   kOutcome for each kSnapshot, in order
//
// Both run on one machine and are built together: messages are structs, and kLinkVersion tells a
// mismatch.
//
// Ownership: Packet functions borrow descriptors. Thread-safety: functions of the descriptor.
#ifndef NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_LINK_H_
#define NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_LINK_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble {

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
  int64_t deleted = 0;       // checkpoints that retention let go
  double write_seconds = 0;  // from the last rank's snapshot until it was committed
  int32_t direct = 1;        // false: some writes went through the page cache, which is slower
  int32_t text_bytes = 0;
  char text[kTextBytes] = {};
};

// Sends whole, with a descriptor if `passed` is not negative. Unavailable where the other side is
// gone. Waits for room unless the socket does not block.
template <class Message>
absl::Status SendPacket(int socket, const Message& message, int passed = -1);

// The next message; nullopt at the end of the stream. With `wait` false, Unavailable where none is
// there yet. A descriptor that came along is put into *passed, which is -1 otherwise; the caller
// owns it. InvalidArgument for a packet that is no Message of this version.
template <class Message>
absl::StatusOr<std::optional<Message>> ReceivePacket(int socket, bool wait, int* passed);

extern template absl::Status SendPacket(int, const RankMessage&, int);
extern template absl::Status SendPacket(int, const HostMessage&, int);
extern template absl::StatusOr<std::optional<RankMessage>> ReceivePacket(int, bool, int*);
extern template absl::StatusOr<std::optional<HostMessage>> ReceivePacket(int, bool, int*);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_LINK_H_
