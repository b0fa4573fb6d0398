#include "server/controller/watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/state/entities.h"

namespace nibble {
namespace {

// Entries examined per lock of the log.
constexpr size_t kLook = 64;
// In place of the key of an update's last event: no name of a job begins with it or a later
// character.
constexpr char kAllEvents[] = "~";

}  // namespace

std::string StoreMark(const v1::StoreIdentity& store) {
  constexpr size_t kDigits = 8;
  if (store.id().empty()) return "";
  return absl::StrCat(store.id().substr(0, kDigits), ".", store.epoch(), ".",
                      store.epoch_id().substr(0, kDigits), ".");
}

std::string ResumeToken(absl::string_view store_mark, int64_t sequence, absl::string_view event) {
  return absl::StrCat(store_mark, "s", sequence, event.empty() ? "" : ":", event);
}

absl::StatusOr<ResumePlace> ParseResumeToken(absl::string_view token) {
  ResumePlace place;
  const size_t at = token.find('s');
  const size_t colon = token.find(':');
  if (colon != absl::string_view::npos) place.event = std::string(token.substr(colon + 1));
  const bool ours =
      at != absl::string_view::npos && token.find_first_not_of("0123456789abcdef.") == at &&
      absl::SimpleAtoi(token.substr(0, colon).substr(at + 1), &place.sequence) &&
      place.sequence >= 0 && (colon == absl::string_view::npos) == place.event.empty();
  if (!ours) {
    return absl::InvalidArgumentError(
        absl::StrCat("resume_token: '", token.substr(0, 80),
                     "' is not a token of WatchJobs; begin without a token"));
  }
  place.store = std::string(token.substr(0, at));
  return place;
}

void WatchLog::SetStore(const v1::StoreIdentity& store) {
  std::string mark = StoreMark(store);
  MutexLock lock(&mutex_);
  store_mark_ = std::move(mark);
}

void WatchLog::Push(Entry entry, int64_t token, absl::string_view event, Entries& dropped) {
  entry.message.set_resume_token(ResumeToken(store_mark_, token, event));
  sizes_.push_back(entry.message.ByteSizeLong());
  bytes_ += sizes_.back();
  entries_.push_back(std::make_shared<const Entry>(std::move(entry)));
  while (entries_.size() > max_messages_ || bytes_ > max_bytes_) {
    dropped.push_back(std::move(entries_.front()));
    entries_.pop_front();
    bytes_ -= sizes_.front();
    sizes_.pop_front();
    ++first_;
  }
}

void WatchLog::Append(int64_t sequence, std::vector<Entry> entries) {
  Entries dropped;  // freed without the lock
  MutexLock lock(&mutex_);
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].sequence = sequence;
    const bool last = i + 1 == entries.size();
    // A token names no job but that of its message: its reader may not see the others.
    const v1::JobEvent& own = entries[i].message.event();
    const std::string event = last                             ? ""
                              : entries[i].message.has_event() ? EventKey(own.job(), own.number())
                                                               : kAllEvents;
    Push(std::move(entries[i]), last ? sequence : sequence - 1, event, dropped);
  }
  published_ = sequence;
}

void WatchLog::AppendSamples(std::vector<Entry> samples) {
  Entries dropped;
  MutexLock lock(&mutex_);
  for (Entry& sample : samples) {
    sample.sequence = published_;
    Push(std::move(sample), published_, "", dropped);
  }
}

WatchLog::Kept WatchLog::TakeAll() {
  MutexLock lock(&mutex_);
  first_ += static_cast<int64_t>(entries_.size());
  sizes_ = {};
  bytes_ = 0;
  return std::exchange(entries_, {});
}

int64_t WatchLog::end() const {
  MutexLock lock(&mutex_);
  return first_ + static_cast<int64_t>(entries_.size());
}

absl::StatusOr<WatchLog::Entries> WatchLog::From(int64_t place, size_t most) const {
  MutexLock lock(&mutex_);
  if (place < first_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the watch reads too slowly: it is ",
                     first_ + static_cast<int64_t>(entries_.size()) - place,
                     " messages behind, and only the last ", entries_.size(), " (", bytes_,
                     " bytes) are kept; resume from its token"));
  }
  const auto begin = static_cast<size_t>(place - first_);
  const size_t count = std::min(most, entries_.size() - std::min(begin, entries_.size()));
  const auto from = entries_.begin() + static_cast<ptrdiff_t>(begin);
  return Entries(from, from + static_cast<ptrdiff_t>(count));
}

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
  return entry.message.has_sample() ? with_samples_ : entry.sequence > begun_sequence_;
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
  MutexLock lock(&mutex_);
  if (!status_.ok()) return nullptr;
  if (phase_ == Phase::kNotBegun) {
    // In this order: the snapshot includes everything published before the place.
    place_ = log_->end();
    beginning_ = std::exchange(begin_, nullptr)();
    begun_sequence_ = beginning_.sequence;
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
  MutexLock lock(&mutex_);
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
  MutexLock lock(&mutex_);
  CutLocked(std::move(why));
}

absl::Status Watch::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

bool Watch::CutIfStalled(int64_t now_ms, int64_t stall_ms) {
  if (!mutex_.TryLock()) return false;  // it is reading
  const bool over = CutIfStalledLocked(now_ms, stall_ms);
  mutex_.Unlock();
  return over;
}

bool Watch::CutIfStalledLocked(int64_t now_ms, int64_t stall_ms) {
  const bool waits =
      !waits_for_turn_ && status_.ok() && (phase_ != Phase::kCaughtUp || Find() != nullptr);
  // A beginning, which keeps a snapshot, may last as long as the log keeps its place.
  if (phase_ == Phase::kBegun && status_.ok()) {
    if (const auto place = log_->From(place_, 0); !place.ok()) CutLocked(place.status());
  }
  if (const int64_t for_ms = look_.Look(now_ms, waits, reads_); for_ms > stall_ms) {
    CutLocked(ReadsTooSlowly("the watch", for_ms, stall_ms, "resume from its token"));
  }
  return !status_.ok();
}

}  // namespace nibble
