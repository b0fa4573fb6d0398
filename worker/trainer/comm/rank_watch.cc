#include "worker/trainer/comm/rank_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/link/trainer_exit.h"
#include "worker/trainer/comm/rendezvous.h"

namespace nibble {
namespace {

// How long a rank that leaves waits for its operations, and for ranks that are behind.
constexpr std::chrono::seconds kLeavePatience(5);
constexpr std::chrono::milliseconds kLeavingBeat(5);
// How long an error of the transport waits for the watch to find out which rank is its cause.
constexpr std::chrono::milliseconds kNamingPatience(1000);

// The part of a collective's error that says what happened.
absl::Status WithoutOperation(const absl::Status& status, int rank, int world) {
  const std::string text(status.message());
  const std::string head = absl::StrCat(" on rank ", rank, " of ", world, ": ");
  const size_t at = text.find(head);
  if (at == std::string::npos) return status;
  return absl::Status(status.code(), text.substr(at + head.size()));
}

}  // namespace

std::vector<WatchWords> WatchWords::FromWords(std::span<const uint64_t> words) {
  std::vector<WatchWords> ranks;
  for (size_t at = 0; at + kWords <= words.size(); at += kWords) {
    ranks.push_back({words[at], words[at + 1], words[at + 2], words[at + 3]});
  }
  return ranks;
}

absl::Status JudgeOperation(std::span<const WatchWords> ranks, int rank, uint64_t number,
                            int64_t waited_ms, int64_t timeout_ms) {
  std::vector<int> missing;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (static_cast<int>(r) == rank) continue;
    if (ranks[r].state == kWatchLeaves && ranks[r].completed < number) {
      return absl::UnavailableError(
          absl::StrCat("rank ", r, " has left after operation #", ranks[r].completed));
    }
    if (ranks[r].begun < number) missing.push_back(static_cast<int>(r));
  }
  if (waited_ms < timeout_ms) return absl::OkStatus();
  if (missing.empty()) {
    return absl::DeadlineExceededError(
        absl::StrCat("every rank has arrived, but it is not complete after ", timeout_ms, " ms"));
  }
  std::string text = absl::StrCat(NameRanks(missing), missing.size() == 1 ? " has" : " have",
                                  " not arrived within ", timeout_ms, " ms");
  if (missing.size() == 1) {
    absl::StrAppend(&text, "; the last operation that it began is #", ranks[missing[0]].begun);
  }
  return absl::DeadlineExceededError(text);
}

RankWatch::RankWatch(std::unique_ptr<Collective> hosts, const Options& options)
    : hosts_(std::move(hosts)), options_(options), thread_([this] { Run(); }) {}

RankWatch::~RankWatch() {
  if (thread_.joinable()) Leave();
}

void RankWatch::Watch(RankGroup* group) {
  absl::Status failed;
  {
    const MutexLock lock(&mutex_);
    group_ = group;
    failed = failed_;
  }
  if (!failed.ok()) group->Abort(failed);
}

absl::Status RankWatch::Enqueued(const char* name, uint64_t number) {
  const MutexLock lock(&mutex_);
  if (!failed_.ok()) return failed_;
  if (!departed_.ok()) return departed_;
  enqueued_.push_back({name, number});
  return absl::OkStatus();
}

void RankWatch::HostEntered(const char* name, uint64_t number) {
  const MutexLock lock(&mutex_);
  host_operation_ = Named{name, number};
}

void RankWatch::HostLeft() {
  const MutexLock lock(&mutex_);
  host_operation_.reset();
}

absl::Status RankWatch::status() const {
  const MutexLock lock(&mutex_);
  return failed_;
}

void RankWatch::Leave() {
  {
    const MutexLock lock(&mutex_);
    leaving_since_ = Clock::now();
  }
  changed_.Signal();
  thread_.join();
  const MutexLock lock(&mutex_);
  group_ = nullptr;
}

void RankWatch::set_observer(CollectiveObserver* observer) {
  const MutexLock lock(&observer_mutex_);
  if (observer_ != nullptr && observed_ != 0) observer_->Left();
  observed_ = 0;
  observer_ = observer;
}

std::optional<RankWatch::Named> RankWatch::InFlight(RankGroup::Progress progress) {
  while (!enqueued_.empty() && enqueued_.front().number <= progress.completed) {
    enqueued_.pop_front();
  }
  if (enqueued_.empty() || progress.begun < enqueued_.front().number) return std::nullopt;
  return enqueued_.front();
}

std::string RankWatch::Describe(const Named& operation) const {
  return absl::StrCat(operation.name, " #", operation.number, " on rank ", hosts_->rank(), " of ",
                      hosts_->world());
}

void RankWatch::Fail(const absl::Status& why, int missing) {
  RankGroup* group = nullptr;
  absl::Status status;
  {
    const MutexLock lock(&mutex_);
    group = group_;
    const std::optional<Named> operation =
        group == nullptr ? std::nullopt : InFlight(group->progress());
    const std::string where = operation.has_value()
                                  ? Describe(*operation)
                                  : absl::StrCat("rank ", hosts_->rank(), " of ", hosts_->world());
    // Whatever happened to the others, this rank is not the cause.
    status = WithExit(absl::Status(why.code(), absl::StrCat(where, ": ", why.message())),
                      TrainerExit::kPeer);
    failed_ = status;
    missing_ = missing;
  }
  if (group != nullptr) group->Abort(status);
}

void RankWatch::TellObserver(const std::optional<Named>& operation) {
  const MutexLock lock(&observer_mutex_);
  const uint64_t number = operation.has_value() ? operation->number : 0;
  if (observer_ == nullptr || number == observed_) return;
  if (observed_ != 0) observer_->Left();
  if (number != 0) observer_->Entered(operation->name, number);
  observed_ = number;
}

void RankWatch::Run() {
  bool together = hosts_->world() > 1;
  while (Beat(together)) {
    const MutexLock lock(&mutex_);
    (void)changed_.WaitFor(&mutex_, leaving_since_.has_value() ? kLeavingBeat : options_.beat);
  }
  TellObserver(std::nullopt);
  int missing = -1;
  {
    const MutexLock lock(&mutex_);
    missing = missing_;
  }
  // The ranks that do not miss it themselves yet.
  if (together && missing >= 0) {
    const WatchWords last = {.state = kWatchFailed, .missing = static_cast<uint64_t>(missing) + 1};
    (void)hosts_->ExchangeSmall(last.ToWords());
  }
}

bool RankWatch::Beat(bool& together) {
  const int rank = hosts_->rank();
  RankGroup* group = nullptr;
  {
    const MutexLock lock(&mutex_);
    group = group_;
  }
  const RankGroup::Progress progress = group == nullptr ? RankGroup::Progress() : group->progress();
  const absl::Status health = group == nullptr ? absl::OkStatus() : group->Health();
  const Clock::time_point now = Clock::now();

  std::optional<Named> operation, shown;
  bool leaves = false, gives_up = false;
  absl::Status departed;
  {
    const MutexLock lock(&mutex_);
    operation = InFlight(progress);
    shown = operation.has_value() ? operation : host_operation_;
    if (leaving_since_.has_value()) {
      gives_up = now - *leaving_since_ >= kLeavePatience;
      leaves = enqueued_.empty() || gives_up;
    }
    departed = departed_;
  }
  const uint64_t number = operation.has_value() ? operation->number : 0;
  if (number != waits_in_) {
    waits_in_ = number;
    waits_since_ = now;
  }
  TellObserver(shown);
  const int64_t waited =
      number == 0
          ? 0
          : std::chrono::duration_cast<std::chrono::milliseconds>(now - waits_since_).count();

  const WatchWords mine = {.begun = progress.begun,
                           .completed = progress.completed,
                           .state = leaves ? kWatchLeaves : kWatchRuns};
  if (hosts_->world() == 1) seen_ = {mine};
  if (together) {
    const absl::StatusOr<std::vector<uint64_t>> words = hosts_->ExchangeSmall(mine.ToWords());
    if (words.ok()) {
      seen_ = WatchWords::FromWords(*words);
    } else {
      together = false;
      if (departed.ok() && !leaves) {
        Fail(WithoutOperation(words.status(), rank, hosts_->world()), -1);
        return false;
      }
    }
  }
  bool others_are_done = true;
  for (int r = 0; r < static_cast<int>(seen_.size()); ++r) {
    const WatchWords& theirs = seen_[static_cast<size_t>(r)];
    if (theirs.completed < mine.completed) others_are_done = false;
    if (r == rank || !together) continue;
    if (theirs.state == kWatchFailed) {
      std::string text = absl::StrCat("rank ", r, " gave up");
      if (theirs.missing > 0) absl::StrAppend(&text, ", missing rank ", theirs.missing - 1);
      Fail(absl::UnavailableError(text), -1);
      return false;
    }
    if (theirs.state == kWatchLeaves && departed.ok()) {
      departed = absl::UnavailableError(
          absl::StrCat("rank ", r, " has left after operation #", theirs.completed));
      const MutexLock lock(&mutex_);
      departed_ = departed;
    }
  }
  if (operation.has_value()) {
    const absl::Status judged =
        JudgeOperation(seen_, rank, number, waited, options_.timeout.count());
    if (!judged.ok()) {
      const auto late = std::find_if(seen_.begin(), seen_.end(),
                                     [&](const WatchWords& words) { return words.begun < number; });
      Fail(judged, late == seen_.end() ? -1 : static_cast<int>(late - seen_.begin()));
      return false;
    }
  }
  if (health.ok()) {
    sick_since_.reset();
  } else if (!sick_since_.has_value()) {
    sick_since_ = now;
  } else if (now - *sick_since_ >= kNamingPatience) {
    Fail(health, -1);
    return false;
  }
  return !(leaves && (others_are_done || !together || gives_up));
}

}  // namespace nibble
