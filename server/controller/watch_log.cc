#include "server/controller/watch_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nibble {

std::string StoreMark(const v1::StoreIdentity& store) {
  constexpr size_t kDigits = 8;
  if (store.id().empty()) return "";
  return absl::StrCat(store.id().substr(0, kDigits), ".", store.epoch(), ".");
}

std::string ResumeToken(absl::string_view store_mark, int64_t sequence) {
  return absl::StrCat(store_mark, "s", sequence);
}

absl::StatusOr<ResumePlace> ParseResumeToken(absl::string_view token) {
  ResumePlace place;
  const size_t at = token.find('s');
  const bool ours = at != absl::string_view::npos &&
                    token.find_first_not_of("0123456789abcdef.") == at &&
                    absl::SimpleAtoi(token.substr(at + 1), &place.sequence) && place.sequence >= 0;
  if (!ours) {
    return absl::InvalidArgumentError(
        absl::StrCat("resume_token: '", token.substr(0, 80), "' is not one of ours"));
  }
  place.store = std::string(token.substr(0, at));
  return place;
}

void WatchLog::SetStore(const v1::StoreIdentity& store) {
  std::string mark = StoreMark(store);
  std::lock_guard lock(mutex_);
  store_mark_ = std::move(mark);
}

void WatchLog::Push(Entry entry, int64_t token, Entries& dropped) {
  entry.message.set_resume_token(ResumeToken(store_mark_, token));
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

void WatchLog::Append(int64_t sequence, std::vector<Entry> news) {
  Entries dropped;  // freed without the lock
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < news.size(); ++i) {
    news[i].sequence = sequence;
    Push(std::move(news[i]), i + 1 == news.size() ? sequence : sequence - 1, dropped);
  }
  published_ = sequence;
}

void WatchLog::AppendSamples(std::vector<Entry> samples) {
  Entries dropped;
  std::lock_guard lock(mutex_);
  for (Entry& sample : samples) {
    sample.sequence = published_;
    Push(std::move(sample), published_, dropped);
  }
}

WatchLog::Kept WatchLog::TakeAll() {
  std::lock_guard lock(mutex_);
  first_ += static_cast<int64_t>(entries_.size());
  sizes_ = {};
  bytes_ = 0;
  return std::exchange(entries_, {});
}

int64_t WatchLog::end() const {
  std::lock_guard lock(mutex_);
  return first_ + static_cast<int64_t>(entries_.size());
}

absl::StatusOr<WatchLog::Entries> WatchLog::From(int64_t place, size_t most) const {
  std::lock_guard lock(mutex_);
  if (place < first_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the watch reads too slowly: ", first_ + static_cast<int64_t>(entries_.size()) - place,
        " messages behind, and the last ", entries_.size(), " of ", bytes_,
        " bytes are kept; resume from its token"));
  }
  const auto begin = static_cast<size_t>(place - first_);
  const size_t count = std::min(most, entries_.size() - std::min(begin, entries_.size()));
  const auto from = entries_.begin() + static_cast<ptrdiff_t>(begin);
  return Entries(from, from + static_cast<ptrdiff_t>(count));
}

}  // namespace nibble
