#include "server/controller/watch.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

// Entries that are looked at with one lock of the log.
constexpr size_t kLook = 64;

}  // namespace

Watch::Watch(const v1::WatchJobsRequest& request, std::shared_ptr<const WatchLog> log, Begin begin,
             std::function<void()> notify)
    : jobs_(request.jobs().begin(), request.jobs().end()),
      with_samples_(request.with_samples()),
      log_(std::move(log)),
      notify_(std::move(notify)),
      begin_(std::move(begin)),
      place_(log_->end()) {
  if (begin_ == nullptr) phase_ = Phase::kCaughtUp;
}

bool Watch::Wants(const WatchLog::Entry& entry) const {
  if (!jobs_.empty() && !jobs_.contains(entry.job)) return false;
  return entry.message.has_sample() ? with_samples_ : entry.sequence > told_;
}

std::shared_ptr<const WatchLog::Entry> Watch::Find() {
  while (true) {
    absl::StatusOr<WatchLog::Entries> entries = log_->From(place_, jobs_.empty() ? 1 : kLook);
    if (!entries.ok()) {
      CutLocked(entries.status());
      return nullptr;
    }
    if (entries->empty()) return nullptr;
    for (std::shared_ptr<const WatchLog::Entry>& entry : *entries) {
      if (Wants(*entry)) return std::move(entry);
      ++place_;
    }
  }
}

Watch::Message Watch::Next() {
  std::lock_guard lock(mutex_);
  if (!status_.ok()) return nullptr;
  if (phase_ == Phase::kNotBegun) {
    // In this order: what is published before the place is in the snapshot.
    place_ = log_->end();
    beginning_ = std::exchange(begin_, nullptr)();
    told_ = beginning_.sequence;
    phase_ = Phase::kBegun;
  }
  if (phase_ == Phase::kBegun) {
    absl::StatusOr<v1::WatchJobsResponse> message = beginning_.next();
    if (!message.ok()) {
      CutLocked(message.status());
      return nullptr;
    }
    ++reads_;
    if (message->has_caught_up()) {
      beginning_ = {};
      phase_ = Phase::kCaughtUp;
    }
    return std::make_shared<const v1::WatchJobsResponse>(*std::move(message));
  }
  std::shared_ptr<const WatchLog::Entry> entry = Find();
  if (entry == nullptr) return nullptr;
  ++place_;
  ++reads_;
  const v1::WatchJobsResponse* const message = &entry->message;
  return {std::move(entry), message};
}

bool Watch::HasNext() {
  std::lock_guard lock(mutex_);
  if (!status_.ok() || phase_ != Phase::kCaughtUp) return true;
  return Find() != nullptr || !status_.ok();
}

void Watch::CutLocked(absl::Status why) {
  if (!status_.ok()) return;
  status_ = std::move(why);
  begin_ = nullptr;
  beginning_ = {};
}

void Watch::Cut(absl::Status why) {
  std::lock_guard lock(mutex_);
  CutLocked(std::move(why));
}

absl::Status Watch::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

bool Watch::CutIfStalled(int64_t now_ms, int64_t stall_ms) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // it reads just now
  const bool waits = !asked_ && status_.ok() && (phase_ != Phase::kCaughtUp || Find() != nullptr);
  // How long a beginning, and its snapshot, may take is for the log to say.
  if (phase_ == Phase::kBegun && status_.ok()) {
    if (const auto place = log_->From(place_, 0); !place.ok()) CutLocked(place.status());
  }
  if (!waits || reads_ != seen_reads_ || seen_ms_ < 0) {
    seen_ms_ = now_ms;
    seen_reads_ = reads_;
  } else if (now_ms - seen_ms_ > stall_ms) {
    CutLocked(absl::ResourceExhaustedError(
        absl::StrCat("the watch reads too slowly: nothing for ", now_ms - seen_ms_,
                     " ms; allowed: ", stall_ms, "; resume from its token")));
  }
  return !status_.ok();
}

}  // namespace nibble
