#include "server/controller/watch_hub.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/state/job_machine.h"

namespace nibble {

std::string ResumeToken(int64_t sequence) { return absl::StrCat("s", sequence); }

absl::StatusOr<int64_t> ParseResumeToken(absl::string_view token) {
  int64_t sequence = 0;
  if (!absl::StartsWith(token, "s") || !absl::SimpleAtoi(token.substr(1), &sequence) ||
      sequence < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("resume_token: '", token.substr(0, 80), "' is not one of ours"));
  }
  return sequence;
}

std::optional<v1::WatchJobsResponse> Watch::Next() {
  std::lock_guard lock(mutex_);
  if (!status_.ok()) return std::nullopt;
  if (!beginning_.empty()) {
    v1::WatchJobsResponse message = std::move(beginning_.front());
    beginning_.pop_front();
    if (beginning_.empty()) beginning_bytes_ = 0;
    ++reads_;
    return message;
  }
  if (news_.empty()) return std::nullopt;
  const Message message = std::move(news_.front());
  news_.pop_front();
  news_bytes_ -= message->ByteSizeLong();
  ++reads_;
  return *message;
}

void Watch::Cut(absl::Status why) {
  status_ = std::move(why);
  news_.clear();
  news_bytes_ = 0;
  beginning_.clear();
  beginning_bytes_ = 0;
}

absl::Status Watch::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

absl::StatusOr<std::shared_ptr<Watch>> WatchHub::Open(const v1::WatchJobsRequest& request,
                                                      std::deque<v1::WatchJobsResponse> beginning,
                                                      std::function<void()> notify) {
  if (static_cast<size_t>(request.jobs_size()) > limits_.jobs_per_watch) {
    return absl::InvalidArgumentError(absl::StrCat("jobs: ", request.jobs_size(),
                                                   " are named; allowed: ", limits_.jobs_per_watch,
                                                   " and fewer"));
  }
  auto watch = std::make_shared<Watch>();
  watch->jobs_.insert(request.jobs().begin(), request.jobs().end());
  watch->with_samples_ = request.with_samples();
  watch->limits_ = limits_;
  watch->notify_ = std::move(notify);
  size_t bytes = 0;
  for (const v1::WatchJobsResponse& message : beginning) bytes += message.ByteSizeLong();
  watch->beginning_ = std::move(beginning);
  watch->beginning_bytes_ = bytes;
  std::lock_guard lock(mutex_);
  const size_t others = BeginningBytes();
  if (others + bytes > limits_.beginning_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("watches: others have ", others, " bytes to read, this one begins with ",
                     bytes, "; allowed: ", limits_.beginning_bytes, " together"));
  }
  if (watches_.size() >= limits_.watches) {
    return absl::ResourceExhaustedError(
        absl::StrCat("watches: ", watches_.size(), " are open, as many as are allowed"));
  }
  watches_.insert(watch);
  return watch;
}

size_t WatchHub::BeginningBytes() const {
  size_t bytes = 0;
  for (const auto& watch : watches_) {
    std::lock_guard lock(watch->mutex_);
    bytes += watch->beginning_bytes_;
  }
  return bytes;
}

void WatchHub::CutStalled(int64_t now_ms) {
  std::vector<std::shared_ptr<Watch>> cut;
  {
    std::lock_guard lock(mutex_);
    for (const auto& watch : watches_) {
      std::lock_guard watch_lock(watch->mutex_);
      const bool waits = !watch->beginning_.empty() || !watch->news_.empty();
      if (!waits || watch->reads_ != watch->seen_reads_ || watch->seen_ms_ == 0) {
        watch->seen_ms_ = now_ms;
        watch->seen_reads_ = watch->reads_;
      } else if (now_ms - watch->seen_ms_ > limits_.stall_ms) {
        watch->Cut(absl::ResourceExhaustedError(
            absl::StrCat("the watch reads too slowly: nothing for ", now_ms - watch->seen_ms_,
                         " ms; allowed: ", limits_.stall_ms, "; resume from its token")));
        cut.push_back(watch);
      }
    }
  }
  for (const auto& watch : cut) {
    if (watch->notify_) watch->notify_();
  }
}

void WatchHub::Close(const std::shared_ptr<Watch>& watch) {
  std::lock_guard lock(mutex_);
  watches_.erase(watch);
}

WatchHub::Counts WatchHub::Count() const {
  std::lock_guard lock(mutex_);
  return {watches_.size(), waits_.size()};
}

bool WatchHub::IsWatched(const std::string& job) const {
  std::lock_guard lock(mutex_);
  for (const auto& watch : watches_) {
    if (watch->Wants(job)) return true;
  }
  return false;
}

void WatchHub::Publish(std::vector<News> news, int64_t token_before, int64_t token) {
  std::vector<std::shared_ptr<Watch>> watches;
  {
    std::lock_guard lock(mutex_);
    watches.assign(watches_.begin(), watches_.end());
  }
  std::set<std::shared_ptr<Watch>> told;
  for (size_t i = 0; i < news.size(); ++i) {
    const std::string job = news[i].job;
    news[i].message.set_resume_token(ResumeToken(i + 1 == news.size() ? token : token_before));
    const auto message = std::make_shared<const v1::WatchJobsResponse>(std::move(news[i].message));
    for (const std::shared_ptr<Watch>& watch : watches) {
      if (!watch->Wants(job) || (message->has_sample() && !watch->with_samples_)) continue;
      std::lock_guard lock(watch->mutex_);
      if (!watch->status_.ok()) continue;
      const size_t bytes = message->ByteSizeLong();
      if (watch->news_.size() >= watch->limits_.buffered ||
          watch->news_bytes_ + bytes > watch->limits_.buffered_bytes) {
        watch->Cut(absl::ResourceExhaustedError(
            absl::StrCat("the watch reads too slowly: ", watch->news_.size(), " messages of ",
                         watch->news_bytes_, " bytes wait; resume from its token")));
      } else {
        watch->news_.push_back(message);
        watch->news_bytes_ += bytes;
      }
      told.insert(watch);
    }
  }
  for (const std::shared_ptr<Watch>& watch : told) {
    if (watch->notify_) watch->notify_();
  }
}

std::optional<absl::Status> WaitOver(const std::string& job, const std::set<v1::JobState>& states,
                                     v1::JobState now) {
  if (states.empty() ? IsFinished(now) : states.contains(now)) return absl::OkStatus();
  if (!IsFinished(now)) return std::nullopt;
  return absl::FailedPreconditionError(absl::StrCat("states: ", job, " is ", StateName(now),
                                                    " and can no longer be in one of those"));
}

absl::StatusOr<int64_t> WatchHub::Wait(const std::string& job, std::set<v1::JobState> states,
                                       Done done) {
  std::lock_guard lock(mutex_);
  if (waits_.size() >= limits_.waits) {
    return absl::ResourceExhaustedError(
        absl::StrCat("waits: ", waits_.size(), " are open, as many as are allowed"));
  }
  const int64_t number = next_wait_++;
  waits_[number] = {job, std::move(states), std::move(done)};
  waits_of_[job].insert(number);
  return number;
}

bool WatchHub::EndWait(int64_t number) {
  std::lock_guard lock(mutex_);
  const auto found = waits_.find(number);
  if (found == waits_.end()) return false;
  const auto of = waits_of_.find(found->second.job);
  of->second.erase(number);
  if (of->second.empty()) waits_of_.erase(of);
  waits_.erase(found);
  return true;
}

void WatchHub::Moved(const std::string& job, v1::JobState state) {
  std::vector<std::pair<Done, absl::Status>> over;
  {
    std::lock_guard lock(mutex_);
    const auto of = waits_of_.find(job);
    if (of == waits_of_.end()) return;
    std::erase_if(of->second, [&](int64_t number) {
      Waiting& waiting = waits_.at(number);
      std::optional<absl::Status> end = WaitOver(job, waiting.states, state);
      if (!end) return false;
      over.emplace_back(std::move(waiting.done), *std::move(end));
      waits_.erase(number);
      return true;
    });
    if (of->second.empty()) waits_of_.erase(of);
  }
  for (auto& [done, status] : over) done(status);
}

}  // namespace nibble
