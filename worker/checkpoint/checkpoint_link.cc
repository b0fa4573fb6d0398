#include "worker/checkpoint/checkpoint_link.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "worker/checkpoint/disk.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {
namespace {

constexpr int64_t kPage = 4096;
constexpr uint64_t kAreaMagic = 0x31414552414b424e;  // "NBKAREA1"
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct AreaHead {
  uint64_t magic;
  int64_t slices_bytes;
};

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

struct SnapshotArea::Layout {
  int64_t slices_bytes = 0;
  int64_t note_at = 0;
  int64_t buffers_at = 0;
  int64_t total = 0;

  static absl::StatusOr<Layout> Of(int64_t slices_bytes, absl::Span<const TensorSlice> slices) {
    Layout layout;
    layout.slices_bytes = slices_bytes;
    layout.note_at = RoundUp(kPage + slices_bytes, kPage);
    layout.buffers_at = layout.note_at + RoundUp(kMaxNoteBytes, kPage);
    layout.total = layout.buffers_at;
    for (const TensorSlice& slice : slices) {
      NIBBLE_RETURN_IF_ERROR(CheckSlice(slice));
      const int64_t bytes = RoundUp(SliceBytes(slice), kBufferAlign);
      if (bytes > std::numeric_limits<int64_t>::max() / 2 - layout.total) {
        return absl::InvalidArgumentError("the slices together are larger than any memory");
      }
      layout.total += bytes;
    }
    layout.total = RoundUp(layout.total, kPage);
    return layout;
  }
};

SnapshotArea::SnapshotArea(int descriptor, std::byte* memory, const Layout& layout,
                           std::vector<TensorSlice> slices)
    : descriptor_(descriptor),
      memory_(memory),
      mapped_(layout.total),
      note_at_(layout.note_at),
      slices_(std::move(slices)) {
  int64_t at = layout.buffers_at;
  for (const TensorSlice& slice : slices_) {
    const int64_t size = SliceBytes(slice);
    buffers_.emplace_back(memory_ + at, size);
    at += RoundUp(size, kBufferAlign);
    bytes_ += size;
  }
}

SnapshotArea::~SnapshotArea() {
  munmap(memory_, static_cast<size_t>(mapped_));
  close(descriptor_);
}

absl::StatusOr<std::unique_ptr<SnapshotArea>> SnapshotArea::Create(
    std::vector<TensorSlice> slices) {
  const std::string encoded = EncodeSlices(slices);
  const auto slices_bytes = static_cast<int64_t>(encoded.size());
  if (slices_bytes > kMaxSlicesBytes) {
    return absl::InvalidArgumentError(absl::StrCat(slices.size(), " slices take ", slices_bytes,
                                                   " bytes to name, more than ", kMaxSlicesBytes));
  }
  NIBBLE_ASSIGN_OR_RETURN(const Layout layout, Layout::Of(slices_bytes, slices));
  const int file = memfd_create("nibble-snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return ErrnoStatus(errno, "making memory for checkpoints");
  const std::string doing = absl::StrCat("taking ", layout.total, " bytes for checkpoints");
  void* memory = MAP_FAILED;
  int error = posix_fallocate(file, 0, layout.total);
  if (error == 0 && fcntl(file, F_ADD_SEALS, kSeals) != 0) error = errno;
  if (error == 0) {
    memory = mmap(nullptr, static_cast<size_t>(layout.total), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_POPULATE, file, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  if (error != 0) {
    close(file);
    if (error == ENOMEM) return absl::ResourceExhaustedError(absl::StrCat(doing, ": no memory"));
    return ErrnoStatus(error, doing);
  }
  auto* bytes = static_cast<std::byte*>(memory);
  const AreaHead head = {.magic = kAreaMagic, .slices_bytes = slices_bytes};
  std::memcpy(bytes, &head, sizeof head);
  std::memcpy(bytes + kPage, encoded.data(), encoded.size());
  return std::unique_ptr<SnapshotArea>(new SnapshotArea(file, bytes, layout, std::move(slices)));
}

absl::StatusOr<std::unique_ptr<SnapshotArea>> SnapshotArea::Adopt(int descriptor) {
  const auto refuse = [&](absl::Status status) {
    close(descriptor);
    return status;
  };
  // Without these seals the file could shrink, and reading past its end kills the process.
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return refuse(absl::InvalidArgumentError("a rank's memory for checkpoints is not sealed"));
  }
  struct stat info;
  if (fstat(descriptor, &info) != 0) return refuse(ErrnoStatus(errno, "sizing a rank's memory"));
  const auto size = static_cast<int64_t>(info.st_size);
  if (size < kPage) {
    return refuse(absl::InvalidArgumentError(
        absl::StrCat("a rank's memory for checkpoints has ", size, " bytes")));
  }
  void* memory =
      mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return refuse(ErrnoStatus(errno, "mapping a rank's memory"));
  const auto unmap = [&](absl::Status status) {
    munmap(memory, static_cast<size_t>(size));
    return refuse(std::move(status));
  };
  AreaHead head;
  std::memcpy(&head, memory, sizeof head);
  if (head.magic != kAreaMagic || head.slices_bytes < 0 || head.slices_bytes > kMaxSlicesBytes ||
      head.slices_bytes > size - kPage) {
    return unmap(absl::InvalidArgumentError("a rank's memory for checkpoints has a wrong head"));
  }
  // Copy before checking: the rank could change shared memory in between.
  const std::string encoded(static_cast<const char*>(memory) + kPage,
                            static_cast<size_t>(head.slices_bytes));
  absl::StatusOr<std::vector<TensorSlice>> slices = DecodeSlices(encoded);
  if (!slices.ok()) return unmap(slices.status());
  const absl::StatusOr<Layout> layout = Layout::Of(head.slices_bytes, *slices);
  if (!layout.ok()) return unmap(layout.status());
  if (layout->total != size) {
    return unmap(absl::InvalidArgumentError(absl::StrCat(
        "a rank's memory for checkpoints has ", size, " bytes, its slices need ", layout->total)));
  }
  return std::unique_ptr<SnapshotArea>(
      new SnapshotArea(descriptor, static_cast<std::byte*>(memory), *layout, *std::move(slices)));
}

absl::Status SnapshotArea::SetNote(absl::string_view note) {
  if (static_cast<int64_t>(note.size()) > kMaxNoteBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("note: ", note.size(), " bytes, more than ", kMaxNoteBytes));
  }
  std::memcpy(memory_ + note_at_, note.data(), note.size());
  return absl::OkStatus();
}

std::string SnapshotArea::Note(int64_t bytes) const {
  return std::string(reinterpret_cast<const char*>(memory_ + note_at_), static_cast<size_t>(bytes));
}

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

namespace {

absl::Status StatusOf(const HostMessage& message) {
  const auto size = std::clamp(message.text_bytes, 0, HostMessage::kTextBytes);
  return absl::Status(static_cast<absl::StatusCode>(message.code),
                      absl::string_view(message.text, static_cast<size_t>(size)));
}

absl::Status HostIsGone(const std::string& address) {
  return absl::UnavailableError(
      absl::StrCat("the process that stores checkpoints, at ", address, ", is gone"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointGuest>> CheckpointGuest::Connect(Options options) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (options.address.size() >= sizeof name.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat(
        "address: ", options.address.size(), " characters, more than ", sizeof name.sun_path - 1));
  }
  std::memcpy(name.sun_path, options.address.data(), options.address.size());
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<SnapshotArea> area, SnapshotArea::Create(options.slices));
  const int descriptor = area->descriptor();
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (socket < 0) return ErrnoStatus(errno, "making a socket");
  std::unique_ptr<CheckpointGuest> guest(
      new CheckpointGuest(std::move(options), std::move(area), socket));
  if (connect(socket, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    return absl::UnavailableError(std::string(
        ErrnoStatus(errno, absl::StrCat("connecting to ", guest->options_.address)).message()));
  }
  const RankMessage hello = {.kind = RankMessage::Kind::kHello,
                             .rank = guest->options_.rank,
                             .attempt = guest->options_.attempt};
  NIBBLE_RETURN_IF_ERROR(SendPacket(socket, hello, descriptor));
  NIBBLE_ASSIGN_OR_RETURN(const auto answer, ReceivePacket<HostMessage>(socket, true, nullptr));
  if (!answer.has_value()) return HostIsGone(guest->options_.address);
  NIBBLE_RETURN_IF_ERROR(StatusOf(*answer));
  return guest;
}

CheckpointGuest::~CheckpointGuest() { close(socket_); }

absl::Status CheckpointGuest::Snapshot(const CheckpointHeader& header, Copy copy) {
  if (in_flight_.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("no checkpoint of step ", header.step,
                                                      ": that of step ", *in_flight_,
                                                      " is still being written"));
  }
  const double begun = options_.clock();
  const std::string note = EncodeHeader(header);
  NIBBLE_RETURN_IF_ERROR(area_->SetNote(note));
  NIBBLE_RETURN_IF_ERROR(copy(area_->buffers()));
  const RankMessage message = {.kind = RankMessage::Kind::kSnapshot,
                               .rank = options_.rank,
                               .attempt = options_.attempt,
                               .step = header.step,
                               .note_bytes = static_cast<int64_t>(note.size())};
  NIBBLE_RETURN_IF_ERROR(SendPacket(socket_, message));
  in_flight_ = header.step;
  stall_seconds_ = options_.clock() - begun;
  return absl::OkStatus();
}

std::optional<CheckpointGuest::Outcome> CheckpointGuest::Receive(bool wait) {
  if (!in_flight_.has_value()) return std::nullopt;
  const auto message = ReceivePacket<HostMessage>(socket_, wait, nullptr);
  if (!wait && absl::IsUnavailable(message.status())) return std::nullopt;
  Outcome outcome = {.step = *in_flight_, .bytes = area_->bytes(), .stall_seconds = stall_seconds_};
  in_flight_.reset();
  if (!message.ok()) {
    outcome.status = message.status();
  } else if (!message->has_value()) {
    outcome.status = HostIsGone(options_.address);
  } else {
    outcome.status = StatusOf(**message);
    outcome.deleted = (*message)->deleted;
    outcome.write_seconds = (*message)->write_seconds;
    outcome.direct = (*message)->direct != 0;
  }
  return outcome;
}

}  // namespace nibble
