#include "worker/checkpoint/checkpoint_link.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/disk.h"

namespace nibble {
namespace {

bool IsGone(int error) { return error == EPIPE || error == ECONNRESET || error == ENOTCONN; }

}  // namespace

template <class Message>
absl::Status SendPacket(int socket, const Message& message, int passed) {
  iovec part = {.iov_base = const_cast<Message*>(&message), .iov_len = sizeof message};
  msghdr packet = {};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (passed >= 0) {
    packet.msg_control = control;
    packet.msg_controllen = sizeof control;
    cmsghdr* rights = CMSG_FIRSTHDR(&packet);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &passed, sizeof passed);
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &packet, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(sizeof message)) return absl::OkStatus();
  if (sent < 0 && IsGone(errno)) return absl::UnavailableError("the other side is gone");
  return ErrnoStatus(errno, "sending to the other side");
}

template <class Message>
absl::StatusOr<std::optional<Message>> ReceivePacket(int socket, bool wait, int* passed) {
  Message message;
  iovec part = {.iov_base = &message, .iov_len = sizeof message};
  msghdr packet = {};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  packet.msg_control = control;
  packet.msg_controllen = sizeof control;
  if (passed != nullptr) *passed = -1;
  ssize_t received;
  do {
    received = recvmsg(socket, &packet, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
  } while (received < 0 && errno == EINTR);
  if (received == 0) return std::nullopt;
  if (received < 0) {
    if (IsGone(errno)) return std::nullopt;
    if (errno == EAGAIN) return absl::UnavailableError("nothing yet");
    return ErrnoStatus(errno, "receiving from the other side");
  }
  int descriptor = -1;
  for (cmsghdr* c = CMSG_FIRSTHDR(&packet); c != nullptr; c = CMSG_NXTHDR(&packet, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
      std::memcpy(&descriptor, CMSG_DATA(c), sizeof descriptor);
    }
  }
  const bool whole = received == static_cast<ssize_t>(sizeof message) &&
                     (packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 &&
                     message.version == kLinkVersion;
  if (descriptor >= 0) {
    if (whole && passed != nullptr) {
      *passed = descriptor;
    } else {
      close(descriptor);
    }
  }
  if (!whole) {
    return absl::InvalidArgumentError(absl::StrCat("a packet of ", received,
                                                   " bytes is no message of version ", kLinkVersion,
                                                   ", which has ", sizeof message));
  }
  return message;
}

template absl::Status SendPacket(int, const RankMessage&, int);
template absl::Status SendPacket(int, const HostMessage&, int);
template absl::StatusOr<std::optional<RankMessage>> ReceivePacket(int, bool, int*);
template absl::StatusOr<std::optional<HostMessage>> ReceivePacket(int, bool, int*);

}  // namespace nibble
