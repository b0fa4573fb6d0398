#include "worker/link/rank_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errno_error.h"
#include "common/status_macros.h"
#include "worker/link/link_messages.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<RankLink>> RankLink::Connect(const Options& options) {
  NIBBLE_ASSIGN_OR_RETURN(const sockaddr_un name, SocketName(options.address));
  OwnedDescriptor memory;
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<WaitingPage> page, WaitingPage::Create(memory));
  OwnedDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return ErrnoError(errno, "making a socket");
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no daemon serves ranks at ", ErrnoError(errno, options.address).message()));
  }
  std::unique_ptr<RankLink> link(new RankLink(std::move(socket), std::move(page), options.address));
  link::v1::ToDaemon message;
  link::v1::Hello& hello = *message.mutable_hello();
  hello.set_version(kLinkVersion);
  hello.set_rank(options.rank);
  hello.set_attempt(options.attempt);
  hello.set_pid(getpid());
  link->socket_.Queue(message, std::move(memory));
  NIBBLE_RETURN_IF_ERROR(link->WaitUntil(
      [&] {
        if (!link->welcome_.has_value()) return false;
        return link->welcome_->code() != 0 || link->commanded_ || options.rank != 0;
      },
      options.patience));
  NIBBLE_RETURN_IF_ERROR(StatusOf(*link->welcome_));
  return link;
}

RankLink::~RankLink() {
  if (ended_.ok()) (void)socket_.Send();
}

absl::Status RankLink::Handle(absl::string_view bytes) {
  link::v1::ToRank message;
  NIBBLE_RETURN_IF_ERROR(ParseLinkMessage(bytes, message));
  switch (message.message_case()) {
    case link::v1::ToRank::kWelcome:
      if (welcome_.has_value()) return StatusOf(message.welcome());
      welcome_ = message.welcome();
      break;
    case link::v1::ToRank::kCommand:
      command_.Swap(message.mutable_command());
      commanded_ = true;
      break;
    case link::v1::ToRank::kAreaOutcome:
      area_ = message.area_outcome();
      break;
    case link::v1::ToRank::kCheckpointOutcome:
      outcomes_.push_back(message.checkpoint_outcome());
      break;
    case link::v1::ToRank::kRejoin:
      rejoin_ = std::move(*message.mutable_rejoin());
      break;
    case link::v1::ToRank::kTrace:
      trace_ = message.trace();
      break;
    case link::v1::ToRank::MESSAGE_NOT_SET:
      return absl::InvalidArgumentError("message: missing");
  }
  return absl::OkStatus();
}

absl::Status RankLink::Poll() {
  // Receives also if sending fails: the last messages may say why the link was closed.
  if (!ended_.ok()) return ended_;
  const absl::Status sent = socket_.Send();
  ended_ = socket_.Receive([this](absl::string_view message) { return Handle(message); });
  ended_.Update(sent);
  if (!ended_.ok()) {
    ended_ = absl::Status(ended_.code(), absl::StrCat("link to the daemon at ", address_, ": ",
                                                      std::string(ended_.message())));
  }
  return ended_;
}

void RankLink::WaitForSocket(std::chrono::milliseconds patience) {
  pollfd one = {.fd = socket_.descriptor(),
                .events = static_cast<int16_t>(POLLIN | (socket_.sending() ? POLLOUT : 0))};
  // An interrupted wait returns early, and callers repeat it.
  (void)poll(&one, 1, static_cast<int>(patience.count()));
}

absl::Status RankLink::WaitForChange(std::chrono::milliseconds patience) {
  if (ended_.ok()) WaitForSocket(patience);
  return Poll();
}

absl::Status RankLink::WaitUntil(absl::FunctionRef<bool()> done,
                                 std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (true) {
    const absl::Status polled = Poll();
    if (done()) return absl::OkStatus();
    NIBBLE_RETURN_IF_ERROR(polled);
    if (patience.count() < 0) {
      WaitForSocket(std::chrono::milliseconds(-1));
      continue;
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the daemon at ", address_, " has not answered within ", patience.count(), " ms"));
    }
    WaitForSocket(left);
  }
}

void RankLink::Report(const link::v1::RankReport& report) {
  if (!ended_.ok()) return;
  link::v1::ToDaemon message;
  *message.mutable_report() = report;
  socket_.Keep(message);
  (void)socket_.Send();  // the next Poll reports an error
}

absl::Status RankLink::OfferArea(int descriptor) {
  OwnedDescriptor passed(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (passed.get() < 0) return ErrnoError(errno, "passing the memory for checkpoints");
  link::v1::ToDaemon message;
  message.mutable_area();
  socket_.Queue(message, std::move(passed));
  NIBBLE_RETURN_IF_ERROR(
      WaitUntil([this] { return area_.has_value(); }, std::chrono::milliseconds(-1)));
  return StatusOf(*area_);
}

absl::Status RankLink::SendSnapshot(int64_t step, int64_t note_bytes) {
  NIBBLE_RETURN_IF_ERROR(ended_);
  link::v1::ToDaemon message;
  message.mutable_snapshot()->set_step(step);
  message.mutable_snapshot()->set_note_bytes(note_bytes);
  socket_.Queue(message);
  return Poll();
}

absl::StatusOr<link::v1::Rejoin> RankLink::StandBy(const std::string& reason,
                                                   std::chrono::milliseconds patience) {
  NIBBLE_RETURN_IF_ERROR(ended_);
  link::v1::ToDaemon waits;
  waits.mutable_stand_by()->set_reason(reason);
  socket_.Queue(waits);
  const absl::Status ordered = WaitUntil([this] { return rejoin_.has_value(); }, patience);
  if (absl::IsDeadlineExceeded(ordered)) {
    return absl::DeadlineExceededError(
        absl::StrCat("no later attempt has begun within ", patience.count(), " ms"));
  }
  NIBBLE_RETURN_IF_ERROR(ordered);
  link::v1::ToDaemon joins;
  joins.mutable_rejoining();
  socket_.Queue(joins);
  // Not Poll: the daemon closes the link once it has received this.
  NIBBLE_RETURN_IF_ERROR(socket_.Send());
  return *std::exchange(rejoin_, std::nullopt);
}

std::optional<link::v1::CheckpointOutcome> RankLink::TakeOutcome() {
  const absl::Status polled = Poll();
  link::v1::CheckpointOutcome outcome;
  if (!outcomes_.empty()) {
    outcome = std::move(outcomes_.front());
    outcomes_.pop_front();
  } else if (!polled.ok()) {
    *outcome.mutable_outcome() = OutcomeOf(polled);
    outcome.set_direct(true);
  } else {
    return std::nullopt;
  }
  return outcome;
}

link::v1::CheckpointOutcome RankLink::AwaitOutcome() {
  // An error is an outcome, which TakeOutcome returns.
  (void)WaitUntil([this] { return !outcomes_.empty() || !ended_.ok(); },
                  std::chrono::milliseconds(-1));
  return *TakeOutcome();
}

}  // namespace nibble
