#include "worker/agent/gang_preparation.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/backoff.h"
#include "worker/trainer/link/trainer_exit.h"

namespace nibble {
namespace {

constexpr int64_t kTellBytes = int64_t{16} << 20;

}  // namespace

GangPreparation::GangPreparation(v1::DesiredGang gang, std::string rendezvous, Means means)
    : gang_(std::move(gang)), rendezvous_(std::move(rendezvous)), means_(std::move(means)) {
  if (gang_.has_resume()) {
    Update(gang_);
    lease_ = means_.desk->Keep(gang_.resume());
  }
  thread_ = std::thread([this] { Run(); });
}

GangPreparation::~GangPreparation() {
  cancellation_.Cancel();
  thread_.join();
}

void GangPreparation::Update(const v1::DesiredGang& gang) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const v1::DesiredReplica& shard : gang.resume_shards()) shards_[shard.rank()] = shard;
}

std::optional<absl::StatusOr<std::string>> GangPreparation::result() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return result_;
}

std::string GangPreparation::progress() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return progress_;
}

void GangPreparation::Tell(const std::string& progress) {
  const std::lock_guard<std::mutex> lock(mutex_);
  progress_ = progress;
}

void GangPreparation::Run() {
  absl::StatusOr<std::string> result = rendezvous_;
  if (gang_.has_resume()) {
    if (absl::Status brought = BringCheckpoint(); !brought.ok()) result = brought;
  }
  if (result.ok() && rendezvous_.empty()) {
    Tell("waits for the other workers of its gang");
    result = gang_.first_rank() == 0 ? means_.meetings->Open(gang_.job(), gang_.attempt())
                                     : AskForMeeting(gang_, means_.security, cancellation_);
    if (result.ok()) {
      const absl::Status met = AwaitMembers(*result, gang_, cancellation_);
      if (!met.ok()) result = met;
    }
    // The place to meet is with the worker of rank 0.
    if (!result.ok() && gang_.first_rank() != 0) {
      result = WithExit(result.status(), TrainerExit::kPeer);
    }
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    result_ = std::move(result);
  }
  if (means_.changed) means_.changed();
}

absl::Status GangPreparation::CheckHeld() {
  const v1::CheckpointRef& resume = gang_.resume();
  for (const v1::DesiredReplica& shard : gang_.resume_shards()) {
    if (cancellation_.cancelled()) return absl::CancelledError("called off");
    const absl::StatusOr<uint32_t> crc = means_.desk->CrcOf(resume, shard.rank());
    if (!crc.ok()) continue;
    Tell(absl::StrCat("checks its copy of the shard of rank ", shard.rank()));
    absl::Status good;
    if (*crc != shard.manifest_crc32c()) {
      good = absl::DataLossError("it is not the one that the coordinator knows");
    } else {
      const auto reader = means_.desk->OpenShard(resume, shard.rank());
      int64_t chunks = 0;
      good = reader.ok() ? (*reader)->Verify(chunks) : reader.status();
    }
    if (good.ok()) continue;
    if (means_.log) {
      means_.log(absl::StrCat(
          "the copy of the shard of rank ", shard.rank(), " of ", resume.job(), ", step ",
          resume.step(), ", that is here is damaged and given up: ", std::string(good.message())));
    }
    given_up_.insert(shard.rank());
    means_.damage->Found(shard.ref(), shard.rank(), means_.worker, good);
    absl::Status removed = means_.desk->RemoveDamaged(resume, shard.rank());
    if (!removed.ok()) return removed;
  }
  return absl::OkStatus();
}

absl::Status GangPreparation::BringShard(int32_t rank) {
  const v1::CheckpointRef& resume = gang_.resume();
  Backoff backoff({.first = std::chrono::milliseconds(200),
                   .most = std::chrono::milliseconds(5000),
                   .seed = static_cast<uint64_t>(rank)});
  while (true) {
    v1::DesiredReplica shard;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      shard = shards_.at(rank);
    }
    const bool damaged = given_up_.contains(rank) || means_.damage->AnyOf(shard.ref(), rank);
    if (shard.sources().empty() && damaged) {
      return absl::DataLossError(absl::StrCat("the shard of rank ", rank, " of ", resume.job(),
                                              ", step ", resume.step(),
                                              ", is damaged, and no worker that is present has "
                                              "another copy"));
    }
    int64_t come = 0;
    int64_t told = 0;
    const auto tell = [&] {
      Tell(absl::StrCat("fetches the shard of rank ", shard.rank(), ", one of ",
                        gang_.resume_shards_size(), ": ", come, " bytes so far"));
    };
    tell();
    const absl::Status status =
        means_.fetcher->Fetch(shard, /*input=*/false, cancellation_, [&](int64_t bytes) {
          come += bytes;
          if (come - told < kTellBytes) return;
          told = come;
          tell();
        });
    // A disk that is full, or bytes that are nowhere right, get no better by themselves.
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status) &&
        !absl::IsFailedPrecondition(status)) {
      return status;
    }
    Tell(absl::StrCat("cannot fetch yet: ", std::string(status.message())));
    if (means_.log) means_.log(absl::StrCat(gang_.job(), ": ", progress()));
    if (!cancellation_.Sleep(backoff.Next())) return absl::CancelledError("called off");
  }
}

absl::Status GangPreparation::BringCheckpoint() {
  // Whoever says what to resume from has taken it.
  means_.desk->Accept(gang_.resume());
  if (absl::Status status = CheckHeld(); !status.ok()) return status;
  for (const v1::DesiredReplica& shard : gang_.resume_shards()) {
    if (means_.desk->CrcOf(gang_.resume(), shard.rank()).ok()) continue;
    if (absl::Status status = BringShard(shard.rank()); !status.ok()) return status;
  }
  return means_.desk->MakeLoadable(gang_.resume());
}

}  // namespace nibble
