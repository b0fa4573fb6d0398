#include "worker/link/link_host.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errno_error.h"
#include "common/status_macros.h"
#include "worker/link/link_messages.h"

namespace nibble {
namespace {

constexpr int kBacklog = 64;
constexpr size_t kMedianSteps = 32;
constexpr size_t kFewestSteps = 3;   // below it there is no median
constexpr size_t kMaxSamples = 256;  // not yet taken; beyond it the oldest are dropped
constexpr size_t kMaxReasonBytes = 2048;
constexpr int kAcceptPauseMs = 100;  // between tries of a process without free descriptors

int64_t Median(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

struct LinkHost::Connection {
  Connection(int64_t id, OwnedDescriptor descriptor) : id(id), socket(std::move(descriptor)) {}

  const int64_t id;
  LinkSocket socket;
  std::optional<int32_t> rank;  // once its hello was accepted
  bool has_area = false;        // the sink has its memory
  bool stands_by = false;       // its run is over
  bool rejoin_sent = false;     // the order to join a later attempt
  bool refused = false;         // to be closed once the reason is sent
  bool open = true;
  int64_t command_sent = -1;  // number of the last command
  int64_t trace_sent = 0;     // number of the last request for a trace
};

// Outcomes of checkpoints on their way from the sink's threads to the connections, and the host's
// alarm clock.
class LinkHost::Replies {
 public:
  explicit Replies(OwnedDescriptor wake) : wake_(std::move(wake)) {}

  int wake_descriptor() const { return wake_.get(); }
  void Wake() { (void)eventfd_write(wake_.get(), 1); }
  void Add(int64_t connection, const SnapshotOutcome& outcome) {
    link::v1::CheckpointOutcome message;
    message.set_step(outcome.step);
    *message.mutable_outcome() = OutcomeOf(outcome.status);
    message.set_deleted(outcome.deleted);
    message.set_write_seconds(outcome.write_seconds);
    message.set_direct(outcome.direct);
    {
      MutexLock lock(&mutex_);
      waiting_.emplace_back(connection, std::move(message));
    }
    Wake();
  }
  std::vector<std::pair<int64_t, link::v1::CheckpointOutcome>> Take() {
    MutexLock lock(&mutex_);
    return std::exchange(waiting_, {});
  }

 private:
  const OwnedDescriptor wake_;  // an eventfd
  Mutex mutex_;
  std::vector<std::pair<int64_t, link::v1::CheckpointOutcome>> waiting_
      ABSL_GUARDED_BY(mutex_);  // by id of the connection
};

LinkHost::LinkHost(Options options) : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<LinkHost>> LinkHost::Start(Options options) {
  if (!options.clock) return absl::InvalidArgumentError("clock: missing");
  if (options.ranks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("ranks: ", options.ranks, " is below 1"));
  }
  std::unique_ptr<LinkHost> host(new LinkHost(std::move(options)));
  NIBBLE_RETURN_IF_ERROR(host->Listen());
  host->thread_ = std::thread([h = host.get()] { h->Serve(); });
  return host;
}

absl::Status LinkHost::Listen() {
  NIBBLE_ASSIGN_OR_RETURN(const sockaddr_un name, SocketName(options_.address));
  OwnedDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0) return ErrnoError(errno, "making an eventfd");
  replies_ = std::make_shared<Replies>(std::move(wake));
  (void)unlink(options_.address.c_str());  // of an earlier process
  OwnedDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (listener.get() < 0 ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return ErrnoError(errno, "listening at", options_.address);
  }
  listener_ = std::move(listener);
  return absl::OkStatus();
}

LinkHost::~LinkHost() {
  if (thread_.joinable()) {
    {
      MutexLock lock(&mutex_);
      closing_ = true;
    }
    replies_->Wake();
    thread_.join();
  }
  if (listener_.get() >= 0) (void)unlink(options_.address.c_str());
}

void LinkHost::SetCommand(const link::v1::Command& command) {
  {
    MutexLock lock(&mutex_);
    if (command.SerializeAsString() == command_.SerializeAsString()) return;
    command_ = command;
    ++command_number_;
  }
  replies_->Wake();
}

void LinkHost::Trace(const link::v1::TraceCommand& trace) {
  {
    MutexLock lock(&mutex_);
    trace_ = trace;
  }
  replies_->Wake();
}

int64_t LinkHost::TraceNumber() const {
  MutexLock lock(&mutex_);
  return trace_.number();
}

void LinkHost::Retire() {
  MutexLock lock(&mutex_);
  retiring_ = true;
  replies_->Wake();
  while (!retired_) changed_.Wait(&mutex_);
}

bool LinkHost::RetireIfAsked() {
  {
    MutexLock lock(&mutex_);
    if (!retiring_ || retired_) return retired_;
  }
  for (const auto& connection : connections_) {
    if (!connection->stands_by) Close(*connection);
  }
  std::erase_if(connections_, [](const auto& connection) { return !connection->open; });
  (void)unlink(options_.address.c_str());
  listener_ = OwnedDescriptor();
  MutexLock lock(&mutex_);
  retired_ = true;
  changed_.SignalAll();
  return true;
}

absl::Status LinkHost::Rejoin(int32_t number, const link::v1::Rejoin& order,
                              std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  MutexLock lock(&mutex_);
  const auto at = ranks_.find(number);
  if (at == ranks_.end() || !at->second.connected || !at->second.standing_by.has_value()) {
    return absl::NotFoundError(absl::StrCat("rank ", number, " does not stand by"));
  }
  rejoins_[number] = order;
  replies_->Wake();
  while (!rejoining_.contains(number)) {
    if (!at->second.connected) {
      return absl::UnavailableError(absl::StrCat("rank ", number, " has closed its link"));
    }
    if (changed_.WaitUntil(&mutex_, until) && !rejoining_.contains(number)) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", number, " has not answered within ", patience.count(), " ms"));
    }
  }
  return absl::OkStatus();
}

void LinkHost::AskToGiveUp(int32_t rank) {
  MutexLock lock(&mutex_);
  if (const auto page = pages_.find(rank); page != pages_.end()) page->second->AskToGiveUp();
}

std::map<int32_t, LinkHost::Rank> LinkHost::RanksNow() const {
  std::map<int32_t, Rank> ranks = ranks_;
  for (const auto& [number, page] : pages_) {
    ranks[number].waiting_in = page->Read();
    ranks[number].gives_up = page->gives_up();
  }
  return ranks;
}

std::map<int32_t, LinkHost::Rank> LinkHost::Ranks() const {
  MutexLock lock(&mutex_);
  return RanksNow();
}

std::map<int32_t, LinkHost::Rank> LinkHost::TakeRanks() {
  MutexLock lock(&mutex_);
  std::map<int32_t, Rank> taken = RanksNow();
  for (auto& [number, rank] : ranks_) rank.samples.clear();
  return taken;
}

void LinkHost::Serve() {
  bool accepting = true;
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (closing_) break;
    }
    const bool retired = RetireIfAsked();
    if (retired) accepting = false;
    std::vector<pollfd> waits = {{.fd = replies_->wake_descriptor(), .events = POLLIN},
                                 {.fd = accepting ? listener_.get() : -1, .events = POLLIN}};
    for (const auto& connection : connections_) {
      const bool writing = connection->socket.sending();
      waits.push_back({.fd = connection->socket.descriptor(),
                       .events = static_cast<int16_t>(POLLIN | (writing ? POLLOUT : 0))});
    }
    (void)poll(waits.data(), waits.size(), accepting || retired ? -1 : kAcceptPauseMs);
    eventfd_t ignored;
    (void)eventfd_read(replies_->wake_descriptor(), &ignored);
    for (auto& [id, outcome] : replies_->Take()) {
      for (const auto& connection : connections_) {
        if (connection->id != id) continue;
        link::v1::ToRank message;
        *message.mutable_checkpoint_outcome() = std::move(outcome);
        connection->socket.Queue(message);
      }
    }
    bool received = false;
    for (size_t i = 0; i < connections_.size(); ++i) {
      Connection& connection = *connections_[i];
      absl::Status status;
      if ((waits[i + 2].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
        status = connection.socket.Receive(
            [&](absl::string_view message) { return Handle(connection, message); });
        received = true;
      }
      if (status.ok()) {
        status = Send(connection);
      } else if (absl::IsInvalidArgument(status)) {
        link::v1::ToRank reason;
        *reason.mutable_welcome() = OutcomeOf(status);
        connection.socket.Queue(reason);
        (void)connection.socket.Send();  // what the socket has no room for is lost
      }
      if (!status.ok()) Close(connection);
    }
    std::erase_if(connections_, [](const auto& connection) { return !connection->open; });
    accepting = (waits[1].revents & POLLIN) == 0 || Accept();
    if (received && options_.changed) options_.changed();
  }
  for (const auto& connection : connections_) Close(*connection);
  connections_.clear();
}

bool LinkHost::Accept() {
  OwnedDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() < 0) {
    return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  }
  connections_.push_back(std::make_unique<Connection>(++last_id_, std::move(socket)));
  return true;
}

absl::Status LinkHost::Handle(Connection& connection, absl::string_view bytes) {
  link::v1::ToDaemon message;
  NIBBLE_RETURN_IF_ERROR(ParseLinkMessage(bytes, message));
  if (message.has_hello() == connection.rank.has_value() || connection.refused) {
    return absl::InvalidArgumentError("hello: must be the first message and no other");
  }
  switch (message.message_case()) {
    case link::v1::ToDaemon::kHello:
      return HandleHello(connection, message.hello());
    case link::v1::ToDaemon::kReport:
      return HandleReport(*connection.rank, std::move(*message.mutable_report()));
    case link::v1::ToDaemon::kArea:
      return HandleArea(connection);
    case link::v1::ToDaemon::kStandBy:
      return HandleStandBy(connection, message.stand_by().reason());
    case link::v1::ToDaemon::kRejoining:
      return HandleRejoining(connection);
    case link::v1::ToDaemon::kSnapshot:
      if (!connection.has_area) return absl::InvalidArgumentError("snapshot: without an area");
      options_.snapshots->Snapshot(*connection.rank, message.snapshot().step(),
                                   message.snapshot().note_bytes());
      return absl::OkStatus();
    case link::v1::ToDaemon::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("message: missing");
}

absl::Status LinkHost::HandleHello(Connection& connection, const link::v1::Hello& hello) {
  absl::StatusOr<std::unique_ptr<WaitingPage>> page =
      WaitingPage::Adopt(connection.socket.TakeDescriptor());
  absl::Status status = page.status();
  if (hello.version() != kLinkVersion) {
    status = absl::FailedPreconditionError(
        absl::StrCat("hello.version: ", hello.version(), " is not ", kLinkVersion,
                     "; nibble-trainer and nibble-worker must be of the same build"));
  }
  if (status.ok()) status = Admit(hello, *std::move(page));
  link::v1::ToRank welcome;
  *welcome.mutable_welcome() = OutcomeOf(status);
  connection.socket.Queue(welcome);
  if (status.ok()) connection.rank = hello.rank();
  connection.trace_sent = TraceNumber();  // requests are for ranks that ran at their time
  connection.refused = !status.ok();
  return absl::OkStatus();
}

absl::Status LinkHost::Admit(const link::v1::Hello& hello, std::unique_ptr<WaitingPage> page) {
  if (hello.attempt() != options_.attempt) {
    return absl::AbortedError(absl::StrCat("hello.attempt: rank ", hello.rank(), " is of attempt ",
                                           hello.attempt(), ", not ", options_.attempt));
  }
  const int32_t end = options_.first_rank + options_.ranks;
  if (hello.rank() < options_.first_rank || hello.rank() >= end) {
    return absl::InvalidArgumentError(absl::StrCat("hello.rank: ", hello.rank(), " is not in [",
                                                   options_.first_rank, ", ", end, ")"));
  }
  const int64_t now = options_.clock();
  MutexLock lock(&mutex_);
  Rank& rank = ranks_[hello.rank()];
  if (rank.connected) {
    return absl::AlreadyExistsError(
        absl::StrCat("hello.rank: rank ", hello.rank(), " is already connected"));
  }
  rank.connected = true;
  rank.pid = hello.pid();
  rank.step_at_ms = now;
  pages_[hello.rank()] = std::move(page);
  return absl::OkStatus();
}

absl::Status LinkHost::HandleReport(int32_t number, link::v1::RankReport report) {
  NIBBLE_RETURN_IF_ERROR(CheckReport(report));
  std::shared_ptr<Precision> precision;
  if (report.precision_size() > 0) {
    precision = std::make_shared<Precision>();
    precision->Swap(report.mutable_precision());
  }
  const int64_t now = options_.clock();
  MutexLock lock(&mutex_);
  Rank& rank = ranks_[number];
  if (precision != nullptr) rank.precision = std::move(precision);
  const bool waited = rank.report.activity() != link::v1::RANK_ACTIVITY_STEPS;
  if (report.next_step() > rank.report.next_step() || waited) {
    std::vector<int64_t>& times = step_ms_[number];
    // The first step, and one after a pause, also contains other waits.
    if (!waited) times.push_back(now - rank.step_at_ms);
    if (times.size() > kMedianSteps) times.erase(times.begin());
    rank.median_step_ms = times.size() < kFewestSteps ? 0 : std::max<int64_t>(1, Median(times));
    rank.step_at_ms = now;
  }
  const bool new_step =
      !rank.report.has_sample() || report.sample().step() != rank.report.sample().step();
  if (report.has_sample() && new_step) {
    rank.samples.push_back(ForwardedSample(report.sample()));
    if (rank.samples.size() > kMaxSamples) rank.samples.erase(rank.samples.begin());
  }
  rank.report = std::move(report);
  return absl::OkStatus();
}

absl::Status LinkHost::HandleStandBy(Connection& connection, const std::string& reason) {
  if (connection.stands_by) return absl::InvalidArgumentError("stand_by: must be sent once");
  connection.stands_by = true;
  if (connection.has_area) options_.snapshots->Leave(*connection.rank);
  connection.has_area = false;
  MutexLock lock(&mutex_);
  ranks_[*connection.rank].standing_by = reason.substr(0, kMaxReasonBytes);
  return absl::OkStatus();
}

absl::Status LinkHost::HandleRejoining(const Connection& connection) {
  MutexLock lock(&mutex_);
  if (!connection.rejoin_sent) return absl::InvalidArgumentError("rejoining: without an order");
  rejoining_.insert(*connection.rank);
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::Status LinkHost::HandleArea(Connection& connection) {
  OwnedDescriptor memory = connection.socket.TakeDescriptor();
  absl::Status status;
  if (connection.has_area || connection.stands_by || memory.get() < 0) {
    return absl::InvalidArgumentError("area: must be sent once, with a descriptor");
  }
  if (options_.snapshots == nullptr) {
    status = absl::FailedPreconditionError("area: no checkpoints are stored here");
  } else {
    status = options_.snapshots->Offer(
        *connection.rank, memory.release(),
        [replies = replies_, id = connection.id](const SnapshotOutcome& outcome) {
          replies->Add(id, outcome);
        });
  }
  connection.has_area = status.ok();
  link::v1::ToRank answer;
  *answer.mutable_area_outcome() = OutcomeOf(status);
  connection.socket.Queue(answer);
  return absl::OkStatus();
}

absl::Status LinkHost::Send(Connection& connection) {
  if (connection.rank == 0) {
    MutexLock lock(&mutex_);
    if (connection.command_sent != command_number_) {
      connection.command_sent = command_number_;
      link::v1::ToRank message;
      *message.mutable_command() = command_;
      connection.socket.Keep(message);
    }
  }
  if (connection.rank.has_value()) {
    MutexLock lock(&mutex_);
    if (connection.trace_sent != trace_.number()) {
      connection.trace_sent = trace_.number();
      link::v1::ToRank message;
      *message.mutable_trace() = trace_;
      connection.socket.Queue(message);
    }
  }
  if (connection.stands_by && !connection.rejoin_sent) {
    MutexLock lock(&mutex_);
    if (const auto order = rejoins_.find(*connection.rank); order != rejoins_.end()) {
      connection.rejoin_sent = true;
      link::v1::ToRank message;
      *message.mutable_rejoin() = order->second;
      connection.socket.Queue(message);
    }
  }
  NIBBLE_RETURN_IF_ERROR(connection.socket.Send());
  if (connection.refused && !connection.socket.sending()) {
    return absl::AbortedError("the rank was refused");
  }
  return absl::OkStatus();
}

void LinkHost::Close(Connection& connection) {
  connection.open = false;
  if (!connection.rank.has_value()) return;
  if (connection.has_area) options_.snapshots->Leave(*connection.rank);
  MutexLock lock(&mutex_);
  ranks_[*connection.rank].connected = false;
  changed_.SignalAll();
}

}  // namespace nibble
