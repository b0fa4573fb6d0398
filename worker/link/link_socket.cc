#include "worker/link/link_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr size_t kHeadBytes = sizeof(uint32_t);
constexpr size_t kReadBytes = 65536;
constexpr size_t kMaxDescriptors = 2;  // in one read, and not yet taken

absl::Status Gone(const char* doing, int error) {
  return absl::UnavailableError(
      absl::StrCat("the other side of the link is gone: ", doing, ": ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<sockaddr_un> SocketName(const std::string& path) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof name.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("address: '", path, "' has ", path.size(),
                                                   " bytes, not in [1, ", sizeof name.sun_path - 1,
                                                   "]"));
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  return name;
}

std::string LinkSocket::FrameOf(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  std::string frame;
  frame.reserve(kHeadBytes + size);
  AppendLittle(frame, static_cast<uint32_t>(size));
  message.AppendToString(&frame);
  return frame;
}

void LinkSocket::Queue(const google::protobuf::MessageLite& message, OwnedDescriptor descriptor) {
  queue_.push_back({FrameOf(message), std::move(descriptor)});
}

void LinkSocket::Keep(const google::protobuf::MessageLite& message) { kept_ = FrameOf(message); }

absl::Status LinkSocket::Send() {
  while (true) {
    if (queue_.empty() && !kept_.empty()) {
      queue_.push_back({std::exchange(kept_, std::string()), OwnedDescriptor()});
    }
    if (queue_.empty()) return absl::OkStatus();
    Frame& frame = queue_.front();
    iovec part = {.iov_base = frame.bytes.data(), .iov_len = frame.bytes.size()};
    msghdr packet = {};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (const int passed = frame.descriptor.get(); passed >= 0) {
      packet.msg_control = control;
      packet.msg_controllen = sizeof control;
      cmsghdr* const rights = CMSG_FIRSTHDR(&packet);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &passed, sizeof passed);
    }
    const ssize_t sent = sendmsg(socket_.get(), &packet, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (sent < 0) return Gone("sending", errno);
    frame.descriptor = OwnedDescriptor();  // it went with the first byte
    frame.bytes.erase(0, static_cast<size_t>(sent));
    if (frame.bytes.empty()) queue_.pop_front();
  }
}

OwnedDescriptor LinkSocket::TakeDescriptor() {
  if (descriptors_.empty()) return OwnedDescriptor();
  OwnedDescriptor first = std::move(descriptors_.front());
  descriptors_.pop_front();
  return first;
}

absl::Status LinkSocket::HandleAll(
    absl::FunctionRef<absl::Status(absl::string_view message)> handle) {
  size_t at = 0;
  absl::Status status;
  while (status.ok() && received_.size() - at >= kHeadBytes) {
    const auto size = LoadLittle<uint32_t>(received_.data() + at);
    if (size > kMaxLinkMessageBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("length: ", size, " bytes are more than ", kMaxLinkMessageBytes));
    }
    if (received_.size() - at - kHeadBytes < size) break;
    status = handle(absl::string_view(received_).substr(at + kHeadBytes, size));
    at += kHeadBytes + size;
  }
  received_.erase(0, at);
  return status;
}

absl::Status LinkSocket::Receive(
    absl::FunctionRef<absl::Status(absl::string_view message)> handle) {
  char bytes[kReadBytes];
  while (true) {
    iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
    msghdr packet = {};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
    packet.msg_control = control;
    packet.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket_.get(), &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (got < 0) return Gone("receiving", errno);
    for (cmsghdr* c = CMSG_FIRSTHDR(&packet); c != nullptr; c = CMSG_NXTHDR(&packet, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      for (size_t offset = 0; CMSG_LEN(offset + sizeof(int)) <= c->cmsg_len;
           offset += sizeof(int)) {
        int descriptor;
        std::memcpy(&descriptor, CMSG_DATA(c) + offset, sizeof descriptor);
        descriptors_.emplace_back(descriptor);
      }
    }
    if ((packet.msg_flags & MSG_CTRUNC) != 0 || descriptors_.size() > kMaxDescriptors) {
      return absl::InvalidArgumentError(
          absl::StrCat("descriptors: more than ", kMaxDescriptors, " came at once"));
    }
    if (got == 0) return absl::UnavailableError("the other side of the link has closed it");
    received_.append(bytes, static_cast<size_t>(got));
    NIBBLE_RETURN_IF_ERROR(HandleAll(handle));
  }
}

}  // namespace nibble
