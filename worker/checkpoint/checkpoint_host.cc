#include "worker/checkpoint/checkpoint_host.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/checkpoint/disk.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_writer.h"

namespace nibble {
namespace {

constexpr int kBacklog = 64;

// Truncates: half a reason is better than none.
void PutText(const absl::Status& status, HostMessage& message) {
  message.text_bytes =
      static_cast<int32_t>(status.message().copy(message.text, HostMessage::kTextBytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointHost>> CheckpointHost::Start(Options options) {
  if (options.store == nullptr || !options.clock) {
    return absl::InvalidArgumentError("store and clock are both needed");
  }
  if (options.ranks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("ranks: ", options.ranks, " is below 1"));
  }
  NIBBLE_RETURN_IF_ERROR(options.store->Fence(options.attempt));
  std::unique_ptr<CheckpointHost> host(new CheckpointHost(std::move(options)));
  NIBBLE_RETURN_IF_ERROR(host->Listen());
  host->acceptor_ = std::thread([h = host.get()] { h->Accept(); });
  return host;
}

absl::Status CheckpointHost::Listen() {
  std::error_code error;
  // Not in the job's directory: a socket path may have at most 107 characters.
  const std::filesystem::path run = options_.run_directory.empty()
                                        ? std::filesystem::temp_directory_path(error)
                                        : std::filesystem::path(options_.run_directory);
  std::string directory = run / "nibble-host-XXXXXX";
  if (error || mkdtemp(directory.data()) == nullptr) {
    return ErrnoStatus(error ? error.value() : errno, absl::StrCat("making ", directory));
  }
  directory_ = directory;
  address_ = directory_ + "/socket";
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (address_.size() >= sizeof name.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("TMPDIR, or run_directory: ", address_,
                                                   " is longer than the ", sizeof name.sun_path - 1,
                                                   " characters of a socket's path"));
  }
  std::memcpy(name.sun_path, address_.data(), address_.size());
  listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0 ||
      listen(listener_, kBacklog) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listening at ", address_));
  }
  return absl::OkStatus();
}

CheckpointHost::~CheckpointHost() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    closing_changed_.notify_all();
    for (const int socket : sockets_) {
      if (socket >= 0) shutdown(socket, SHUT_RDWR);
    }
  }
  if (listener_ >= 0) shutdown(listener_, SHUT_RDWR);
  if (acceptor_.joinable()) acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
  if (listener_ >= 0) close(listener_);
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

void CheckpointHost::Accept() {
  while (true) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;  // shut down
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) {
      close(socket);
      return;
    }
    sockets_.push_back(socket);
    threads_.emplace_back([this, socket] { Serve(socket); });
  }
}

absl::Status CheckpointHost::Greet(int socket, Rank& rank) {
  int descriptor = -1;
  NIBBLE_ASSIGN_OR_RETURN(const auto hello, ReceivePacket<RankMessage>(socket, true, &descriptor));
  if (!hello.has_value()) return absl::UnavailableError("nothing was said");
  const RankMessage& message = *hello;
  if (message.kind != RankMessage::Kind::kHello || descriptor < 0) {
    if (descriptor >= 0) close(descriptor);
    return absl::InvalidArgumentError("a rank begins with a greeting and its memory");
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<SnapshotArea> area, SnapshotArea::Adopt(descriptor));
  if (message.attempt != options_.attempt) {
    return absl::AbortedError(absl::StrCat("rank ", message.rank, " is of attempt ",
                                           message.attempt, ", not ", options_.attempt));
  }
  const int32_t end = options_.first_rank + options_.ranks;
  if (message.rank < options_.first_rank || message.rank >= end) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank: ", message.rank, " is not in [", options_.first_rank, ", ", end, ")"));
  }
  rank = {.rank = message.rank, .socket = socket, .area = std::move(area)};
  const std::lock_guard<std::mutex> lock(mutex_);
  bool& present = present_[rank.rank];
  if (present) {
    return absl::AlreadyExistsError(absl::StrCat("rank ", rank.rank, " is here already"));
  }
  present = true;
  return absl::OkStatus();
}

void CheckpointHost::Serve(int socket) {
  Rank rank;
  const absl::Status greeted = Greet(socket, rank);
  HostMessage answer = {.code = static_cast<int32_t>(greeted.code())};
  PutText(greeted, answer);
  // If sending fails the rank is gone, and the next receive reports it.
  (void)SendPacket(socket, answer);
  while (greeted.ok()) {
    int passed = -1;
    const auto message = ReceivePacket<RankMessage>(socket, true, &passed);
    if (passed >= 0) close(passed);
    if (!message.ok() || !message->has_value()) break;
    if ((*message)->kind != RankMessage::Kind::kSnapshot) break;
    TakeSnapshot(rank, **message);
  }
  if (greeted.ok()) RankIsGone(rank.rank);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::replace(sockets_.begin(), sockets_.end(), socket, -1);
  close(socket);
}

void CheckpointHost::BeginWaiting(int64_t step) {
  const std::lock_guard<std::mutex> lock(trouble_mutex_);
  if (++waiting_for_room_ > 1 || !options_.trouble) return;
  options_.trouble(absl::StrCat("the disk is full: the checkpoint of step ", step,
                                " waits in memory for room in ", options_.store->path()));
}

void CheckpointHost::EndWaiting() {
  const std::lock_guard<std::mutex> lock(trouble_mutex_);
  if (--waiting_for_room_ == 0 && options_.trouble) options_.trouble("");
}

absl::Status CheckpointHost::WithRoom(int64_t step, absl::FunctionRef<absl::Status()> attempt) {
  absl::Status status = attempt();
  if (!absl::IsResourceExhausted(status)) return status;
  BeginWaiting(step);
  std::chrono::milliseconds pause = options_.first_retry;
  while (absl::IsResourceExhausted(status)) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (closing_changed_.wait_for(lock, pause, [this] { return closing_; })) break;
    }
    pause = std::min(pause * 2, options_.most_retry);
    status = attempt();
  }
  EndWaiting();
  return status;
}

absl::StatusOr<ShardManifest> CheckpointHost::Write(const Rank& rank, int64_t step, bool& direct) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<ShardWriter> writer,
                          options_.store->Begin(step, options_.attempt, rank.rank));
  for (size_t i = 0; i < rank.area->slices().size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(writer->Put(rank.area->slices()[i], rank.area->buffers()[i]));
  }
  absl::StatusOr<ShardManifest> shard = writer->Seal();
  direct = writer->direct();
  return shard;
}

void CheckpointHost::TakeSnapshot(Rank& rank, const RankMessage& message) {
  const double arrived = options_.clock();
  absl::StatusOr<CheckpointHeader> header = absl::InvalidArgumentError(
      absl::StrCat("rank ", rank.rank, ": a header of ", message.note_bytes, " bytes"));
  if (message.note_bytes >= 0 && message.note_bytes <= SnapshotArea::kMaxNoteBytes) {
    header = DecodeHeader(rank.area->Note(message.note_bytes));
  }
  bool direct = true;
  absl::StatusOr<ShardManifest> shard = ShardManifest();
  if (header.ok()) {
    // The outcome is in `shard`.
    (void)WithRoom(message.step, [&] {
      shard = Write(rank, message.step, direct);
      return shard.status();
    });
  } else {
    shard = header.status();
  }

  std::unique_lock<std::mutex> lock(mutex_);
  Pending& pending = pending_[message.step];
  pending.waiting[rank.rank] = rank.socket;
  pending.direct &= direct;
  pending.last_snapshot = std::max(pending.last_snapshot, arrived);
  if (!shard.ok()) {
    pending.status.Update(absl::Status(
        shard.status().code(),
        absl::StrCat("rank ", rank.rank, ": ", std::string(shard.status().message()))));
  } else {
    pending.header = *std::move(header);
    pending.sealed[rank.rank] = *std::move(shard);
  }
  if (static_cast<int32_t>(pending.waiting.size()) < options_.ranks && pending.status.ok()) {
    // A rank that is gone hands over nothing more.
    for (const auto& [other, present] : present_) {
      if (!present && !pending.waiting.contains(other)) {
        pending.status = absl::UnavailableError(
            absl::StrCat("rank ", other, " ended before it handed over its state"));
        break;
      }
    }
    if (pending.status.ok()) return;
  }
  if (static_cast<int32_t>(pending.waiting.size()) < options_.ranks) {
    // The checkpoint has failed; the other ranks learn it when they hand over their snapshots.
    for (const auto& [other, present] : present_) {
      if (present && !pending.waiting.contains(other)) return;
    }
  }
  Pending finished = std::move(pending);
  pending_.erase(message.step);
  lock.unlock();
  Finish(message.step, std::move(finished));
}

absl::StatusOr<CheckpointStore::CommitReport> CheckpointHost::Commit(
    const CheckpointHeader& header, std::vector<ShardManifest> shards) {
  if (options_.commit) return options_.commit(header, std::move(shards));
  NIBBLE_ASSIGN_OR_RETURN(const Manifest manifest, MakeManifest(header, std::move(shards)));
  return options_.store->Commit(manifest);
}

void CheckpointHost::Finish(int64_t step, Pending pending) {
  Outcome outcome = {.step = step, .status = pending.status, .direct = pending.direct};
  if (outcome.status.ok()) {
    std::vector<ShardManifest> shards;
    for (auto& [rank, shard] : pending.sealed) {
      outcome.bytes += shard.bytes();
      shards.push_back(std::move(shard));
    }
    outcome.status = WithRoom(step, [&] {
      const auto report = Commit(pending.header, shards);
      if (report.ok()) outcome.deleted = static_cast<int64_t>(report->deleted.size());
      return report.status();
    });
  }
  if (!outcome.status.ok()) {
    const absl::Status dropped = options_.store->Discard(step, options_.attempt);
    if (!dropped.ok()) {
      outcome.status = absl::Status(
          outcome.status.code(),
          absl::StrCat(std::string(outcome.status.message()),
                       "; and what was sealed stays for now: ", std::string(dropped.message())));
    }
  }
  outcome.write_seconds = options_.clock() - pending.last_snapshot;
  if (options_.done) {
    const std::lock_guard<std::mutex> lock(done_mutex_);
    options_.done(outcome);
  }
  HostMessage message = {.code = static_cast<int32_t>(outcome.status.code()),
                         .step = step,
                         .deleted = outcome.deleted,
                         .write_seconds = outcome.write_seconds,
                         .direct = outcome.direct ? 1 : 0};
  PutText(outcome.status, message);
  for (const auto& [rank, socket] : pending.waiting) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // A rank that is gone needs no answer, and its socket number may have been reused.
    if (present_[rank]) (void)SendPacket(socket, message);
  }
}

void CheckpointHost::RankIsGone(int32_t rank) {
  std::vector<std::pair<int64_t, Pending>> failed;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    present_[rank] = false;
    for (auto at = pending_.begin(); at != pending_.end();) {
      Pending& pending = at->second;
      if (!pending.waiting.contains(rank)) {
        pending.status.Update(absl::UnavailableError(
            absl::StrCat("rank ", rank, " ended before it handed over its state")));
      }
      bool all = true;
      for (const auto& [other, present] : present_) {
        all &= !present || pending.waiting.contains(other);
      }
      if (!pending.status.ok() && all) {
        failed.emplace_back(at->first, std::move(pending));
        at = pending_.erase(at);
      } else {
        ++at;
      }
    }
  }
  for (auto& [step, pending] : failed) Finish(step, std::move(pending));
}

}  // namespace nibble
