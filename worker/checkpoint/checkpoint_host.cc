#include "worker/checkpoint/checkpoint_host.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/checkpoint/shard_writer.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<CheckpointHost>> CheckpointHost::Start(Options options) {
  if (options.store == nullptr || !options.clock) {
    return absl::InvalidArgumentError("store and clock are both needed");
  }
  if (options.ranks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("ranks: ", options.ranks, " is below 1"));
  }
  NIBBLE_RETURN_IF_ERROR(options.store->Fence(options.attempt));
  return std::unique_ptr<CheckpointHost>(new CheckpointHost(std::move(options)));
}

CheckpointHost::~CheckpointHost() {
  std::map<int32_t, std::thread> threads;
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    threads.swap(threads_);
  }
  changed_.SignalAll();
  closing_changed_.SignalAll();
  for (auto& [rank, thread] : threads) thread.join();
}

absl::Status CheckpointHost::Offer(int32_t rank, int descriptor, Reply reply) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<SnapshotArea> area, SnapshotArea::Adopt(descriptor));
  auto served = std::make_unique<Rank>(
      Rank{.rank = rank, .area = std::move(area), .reply = std::move(reply)});
  MutexLock lock(&mutex_);
  const auto [at, first] = mailboxes_.try_emplace(rank);
  if (!first && !at->second.gone) {
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", rank, " already has memory for checkpoints here"));
  }
  at->second = Mailbox();
  std::thread& thread = threads_[rank];
  // Joins the thread of the rank's earlier life, which is at its end but may wait for the disk.
  thread = std::thread([this, before = std::move(thread), served = std::move(served)]() mutable {
    if (before.joinable()) before.join();
    Serve(*served);
  });
  return absl::OkStatus();
}

void CheckpointHost::Snapshot(int32_t rank, int64_t step, int64_t note_bytes) {
  const double now = options_.clock();
  {
    MutexLock lock(&mutex_);
    mailboxes_[rank].requests.push_back({.step = step, .note_bytes = note_bytes, .arrived = now});
  }
  changed_.SignalAll();
}

void CheckpointHost::Leave(int32_t rank) {
  {
    MutexLock lock(&mutex_);
    mailboxes_[rank].left = true;
  }
  changed_.SignalAll();
}

std::optional<CheckpointHost::Request> CheckpointHost::NextOf(int32_t rank) {
  MutexLock lock(&mutex_);
  Mailbox& mailbox = mailboxes_[rank];
  while (mailbox.requests.empty() && !mailbox.left && !closing_) changed_.Wait(&mutex_);
  if (mailbox.requests.empty() || closing_) return std::nullopt;
  const Request next = mailbox.requests.front();
  mailbox.requests.pop_front();
  return next;
}

void CheckpointHost::Serve(const Rank& rank) {
  while (const std::optional<Request> request = NextOf(rank.rank)) Store(rank, *request);
  Remove(rank.rank);
}

void CheckpointHost::BeginWaiting(int64_t step) {
  MutexLock lock(&trouble_mutex_);
  if (++waiting_for_room_ > 1 || !options_.trouble) return;
  options_.trouble(absl::StrCat("the disk is full: the checkpoint of step ", step,
                                " waits in memory for room in ", options_.store->path()));
}

void CheckpointHost::EndWaiting() {
  MutexLock lock(&trouble_mutex_);
  if (--waiting_for_room_ == 0 && options_.trouble) options_.trouble("");
}

absl::Status CheckpointHost::WithRoom(int64_t step, int64_t bytes,
                                      absl::FunctionRef<absl::Status()> attempt_once) {
  const auto attempt = [&] {
    absl::Status status = attempt_once();
    while (absl::IsResourceExhausted(status) && options_.make_room && options_.make_room(bytes)) {
      status = attempt_once();
    }
    return status;
  };
  absl::Status status = attempt();
  if (!absl::IsResourceExhausted(status)) return status;
  BeginWaiting(step);
  std::chrono::milliseconds pause = options_.first_retry;
  while (absl::IsResourceExhausted(status)) {
    {
      MutexLock lock(&mutex_);
      if (!closing_) closing_changed_.WaitFor(&mutex_, pause);
      if (closing_) break;
    }
    pause = std::min(pause * 2, options_.most_retry);
    status = attempt();
  }
  EndWaiting();
  return status;
}

absl::StatusOr<ShardManifest> CheckpointHost::Write(const Rank& rank, const Request& request,
                                                    CheckpointHeader& header, bool& direct) {
  if (request.note_bytes < 0 || request.note_bytes > SnapshotArea::kMaxNoteBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "note_bytes: ", request.note_bytes, " is not in [0, ", SnapshotArea::kMaxNoteBytes, "]"));
  }
  NIBBLE_ASSIGN_OR_RETURN(header, DecodeHeader(rank.area->Note(request.note_bytes)));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<ShardWriter> writer,
                          options_.store->Begin(request.step, options_.attempt, rank.rank));
  for (size_t i = 0; i < rank.area->slices().size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(writer->Put(rank.area->slices()[i], rank.area->buffers()[i]));
  }
  absl::StatusOr<ShardManifest> shard = writer->Seal();
  direct = writer->direct();
  return shard;
}

void CheckpointHost::Store(const Rank& rank, const Request& request) {
  CheckpointHeader header;
  bool direct = true;
  absl::StatusOr<ShardManifest> shard = ShardManifest();
  const absl::Status written = WithRoom(request.step, rank.area->bytes(), [&] {
    shard = Write(rank, request, header, direct);
    return shard.status();
  });

  Pending finished;
  {
    MutexLock lock(&mutex_);
    Pending& pending = pending_[request.step];
    pending.waiting[rank.rank] = rank.reply;
    pending.direct &= direct;
    pending.last_snapshot = std::max(pending.last_snapshot, request.arrived);
    if (written.ok()) {
      pending.header = std::move(header);
      pending.sealed[rank.rank] = *std::move(shard);
    } else {
      pending.status.Update(absl::Status(
          written.code(), absl::StrCat("rank ", rank.rank, ": ", std::string(written.message()))));
    }
    if (!IsOver(pending)) return;
    finished = std::move(pending);
    pending_.erase(request.step);
  }
  Finish(request.step, std::move(finished));
}

bool CheckpointHost::IsOver(Pending& pending) {
  if (static_cast<int32_t>(pending.waiting.size()) == options_.ranks) return true;
  bool all_present_have_handed_over = true;
  for (const auto& [rank, mailbox] : mailboxes_) {
    if (pending.waiting.contains(rank)) continue;
    if (!mailbox.gone) {
      all_present_have_handed_over = false;
    } else if (pending.status.ok()) {
      pending.status = absl::UnavailableError(
          absl::StrCat("rank ", rank, " ended before it handed over its state"));
    }
  }
  // The other ranks learn that the checkpoint failed when they hand over their snapshots.
  return !pending.status.ok() && all_present_have_handed_over;
}

absl::StatusOr<CheckpointStore::CommitReport> CheckpointHost::Commit(
    const CheckpointHeader& header, std::vector<ShardManifest> shards) {
  if (options_.commit) return options_.commit(header, std::move(shards));
  NIBBLE_ASSIGN_OR_RETURN(const Manifest manifest, MakeManifest(header, std::move(shards)));
  return options_.store->Commit(manifest);
}

void CheckpointHost::Finish(int64_t step, Pending pending) {
  SnapshotOutcome outcome = {.step = step, .status = pending.status, .direct = pending.direct};
  if (outcome.status.ok()) {
    std::vector<ShardManifest> shards;
    for (auto& [rank, shard] : pending.sealed) shards.push_back(std::move(shard));
    outcome.status = WithRoom(step, /*bytes=*/1, [&] {
      const auto report = Commit(pending.header, shards);
      if (report.ok()) outcome.deleted = static_cast<int64_t>(report->deleted.size());
      return report.status();
    });
  }
  if (!outcome.status.ok()) {
    const absl::Status dropped = options_.discard ? options_.discard(step, pending.header)
                                                  : options_.store->Discard(step, options_.attempt);
    if (!dropped.ok()) {
      outcome.status = absl::Status(
          outcome.status.code(),
          absl::StrCat(std::string(outcome.status.message()),
                       "; its sealed shards could not be removed: ", dropped.message()));
    }
  }
  outcome.write_seconds = options_.clock() - pending.last_snapshot;
  for (const auto& [rank, reply] : pending.waiting) reply(outcome);
}

void CheckpointHost::Remove(int32_t rank) {
  std::vector<std::pair<int64_t, Pending>> failed;
  {
    MutexLock lock(&mutex_);
    mailboxes_[rank].gone = true;
    for (auto at = pending_.begin(); at != pending_.end();) {
      if (IsOver(at->second)) {
        failed.emplace_back(at->first, std::move(at->second));
        at = pending_.erase(at);
      } else {
        ++at;
      }
    }
  }
  for (auto& [step, pending] : failed) Finish(step, std::move(pending));
}

}  // namespace nibble
