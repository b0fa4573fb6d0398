// Messages and descriptors over a connected Unix stream socket that never waits: what both sides of
// the link (rank_link.h, link_host.h) have in common.
//
// On the wire a message is 4 bytes of length, little-endian, then that many bytes of a Protocol
// Buffers message. A descriptor travels with the first byte of its message (SCM_RIGHTS); the
// receiver takes it while it handles the message that is defined to have one.
//
// Ownership: owns its descriptors. Thread-safety: none.
#ifndef NIBBLE_WORKER_LINK_LINK_SOCKET_H_
#define NIBBLE_WORKER_LINK_LINK_SOCKET_H_

#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/descriptor.h"
#include "google/protobuf/message_lite.h"

namespace nibble {

// A timeline has at most 2 MiB, and the largest report less.
inline constexpr int64_t kMaxLinkMessageBytes = int64_t{8} << 20;

// The address of a socket in the file system. InvalidArgument for a path that is empty or longer
// than a socket's name may be.
absl::StatusOr<sockaddr_un> SocketName(const std::string& path);

class LinkSocket {
 public:
  explicit LinkSocket(OwnedDescriptor socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }

  // Queues a message, with a descriptor if there is one.
  void Queue(const google::protobuf::MessageLite& message,
             OwnedDescriptor descriptor = OwnedDescriptor());
  // Keeps a message until the queue is sent. It replaces the one kept before, unless that is partly
  // sent.
  void Keep(const google::protobuf::MessageLite& message);
  // Sends as much as the socket has room for. Unavailable if the other side is gone.
  absl::Status Send();
  // Something has yet to be sent.
  bool sending() const { return !queue_.empty() || !kept_.empty(); }

  // Receives what has arrived and calls `handle` with each message; an error of `handle` is
  // returned at once. Unavailable if the other side is gone, after the messages before;
  // InvalidArgument for a malformed length and for more descriptors than messages may have.
  absl::Status Receive(absl::FunctionRef<absl::Status(absl::string_view message)> handle);
  // For `handle`: the descriptor of the message; none if it had none.
  OwnedDescriptor TakeDescriptor();

 private:
  struct Frame {
    std::string bytes;
    OwnedDescriptor descriptor;
  };
  static std::string FrameOf(const google::protobuf::MessageLite& message);
  absl::Status HandleAll(absl::FunctionRef<absl::Status(absl::string_view message)> handle);

  OwnedDescriptor socket_;
  std::deque<Frame> queue_;  // the first may be partly sent
  std::string kept_;         // framed
  std::string received_;
  std::deque<OwnedDescriptor> descriptors_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_LINK_LINK_SOCKET_H_
