#include "worker/checkpoint/checkpoint_guest.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker/checkpoint/checkpoint_link.h"
#include "worker/checkpoint/disk.h"
#include "worker/checkpoint/manifest_codec.h"

namespace nibble {
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
  absl::StatusOr<std::unique_ptr<SnapshotArea>> area = SnapshotArea::Create(options.slices);
  if (!area.ok()) return area.status();
  const int descriptor = (*area)->descriptor();
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (socket < 0) return ErrnoStatus(errno, "making a socket");
  std::unique_ptr<CheckpointGuest> guest(
      new CheckpointGuest(std::move(options), *std::move(area), socket));
  if (connect(socket, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    return absl::UnavailableError(std::string(
        ErrnoStatus(errno, absl::StrCat("connecting to ", guest->options_.address)).message()));
  }
  const RankMessage hello = {.kind = RankMessage::Kind::kHello,
                             .rank = guest->options_.rank,
                             .attempt = guest->options_.attempt};
  if (absl::Status status = SendPacket(socket, hello, descriptor); !status.ok()) return status;
  const auto answer = ReceivePacket<HostMessage>(socket, true, nullptr);
  if (!answer.ok()) return answer.status();
  if (!answer->has_value()) return HostIsGone(guest->options_.address);
  if (absl::Status status = StatusOf(**answer); !status.ok()) return status;
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
  if (absl::Status status = area_->SetNote(note); !status.ok()) return status;
  if (absl::Status status = copy(area_->buffers()); !status.ok()) return status;
  const RankMessage message = {.kind = RankMessage::Kind::kSnapshot,
                               .rank = options_.rank,
                               .attempt = options_.attempt,
                               .step = header.step,
                               .note_bytes = static_cast<int64_t>(note.size())};
  if (absl::Status status = SendPacket(socket_, message); !status.ok()) return status;
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
