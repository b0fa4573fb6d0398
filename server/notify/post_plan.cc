#include "server/notify/post_plan.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "job/choices.h"
#include "job/notify_url.h"
#include "nlohmann/json.hpp"
#include "server/state/entities.h"

namespace nibble {
namespace {

constexpr char kNeverTried[] = "its receiver was busy with other events";
constexpr char kDropped[] = "only the newest events of a job are kept";

// Events in (after, through] that the target wants and that are kept, oldest first.
std::vector<const v1::JobEvent*> WantedEvents(const State& state, const v1::JobRecord& job,
                                              const v1::NotifyTarget& target, int64_t after,
                                              int64_t through) {
  std::vector<const v1::JobEvent*> wanted;
  for (int64_t n = std::max(after + 1, job.first_event()); n <= through; ++n) {
    const v1::JobEvent* const event = FindIn(state.tables().events, EventKey(job.id(), n));
    if (event != nullptr && Wants(target, *event)) wanted.push_back(event);
  }
  return wanted;
}

std::string TimeText(int64_t unix_ms) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMillis(unix_ms),
                          absl::UTCTimeZone());
}

nlohmann::ordered_json AlertBody(const v1::JobAlert& alert) {
  nlohmann::ordered_json body = {{"name", alert.name()},
                                 {"status", alert.ends_unix_ms() == 0 ? "firing" : "resolved"},
                                 {"severity", alert.severity()},
                                 {"summary", alert.summary()},
                                 {"starts", TimeText(alert.starts_unix_ms())}};
  if (alert.ends_unix_ms() > 0) body["ends"] = TimeText(alert.ends_unix_ms());
  if (!alert.runbook_url().empty()) body["runbook_url"] = alert.runbook_url();
  nlohmann::ordered_json labels = nlohmann::ordered_json::object();
  for (const v1::Label& label : alert.labels()) labels[label.key()] = label.value();
  body["labels"] = std::move(labels);
  return body;
}

}  // namespace

void PostPlan::GiveUp(const v1::JobRecord& job, const Key& key, int64_t through, int64_t count,
                      const std::string& problem, Cursor& cursor, Turn& turn) {
  v1::PostsSettled& settled = turn.given_up.emplace_back();
  settled.set_job(job.id());
  settled.set_target(key.second);
  settled.set_through_event(through);
  settled.set_given_up(count);
  settled.set_problem(problem);
  cursor.settled = through;
}

bool PostPlan::Consider(const State& state, const v1::JobRecord& job, int32_t index, int64_t now_ms,
                        Turn& turn) {
  const v1::NotifyTarget& target = job.notify(index);
  if (target.wanted_event() <= target.settled_event()) return false;
  const Key key(job.id(), index);
  Cursor& cursor = cursors_[key];
  cursor.round = round_;
  cursor.settled = std::max(cursor.settled, target.settled_event());
  const auto failing = failing_.find(target.url());
  if (failing != failing_.end()) failing->second.round = round_;
  if (target.wanted_event() <= cursor.settled || cursor.under_way) return false;
  if (cursor.mark_event <= cursor.settled) {
    cursor.mark_event = target.wanted_event();
    cursor.mark_ms = now_ms;
  }
  if (now_ms - cursor.mark_ms >= options_.give_up_ms) {
    const auto lost = WantedEvents(state, job, target, cursor.settled, cursor.mark_event);
    GiveUp(job, key, cursor.mark_event, std::max<int64_t>(1, static_cast<int64_t>(lost.size())),
           failing == failing_.end() ? kNeverTried : failing->second.problem, cursor, turn);
    return Consider(state, job, index, now_ms, turn);
  }
  turn.wait_until_ms = std::min(turn.wait_until_ms, cursor.mark_ms + options_.give_up_ms);
  if (failing != failing_.end() && failing->second.next_ms > now_ms) {
    turn.wait_until_ms = std::min(turn.wait_until_ms, failing->second.next_ms);
    return false;
  }
  const absl::StatusOr<NotifyUrl> url = ParseNotifyUrl(target.url());
  const std::string origin = url.ok() ? url->Origin() : target.url();
  if (busy_.contains(origin)) return false;  // Ended makes it another turn
  const auto events = WantedEvents(state, job, target, cursor.settled, target.wanted_event());
  if (events.empty()) {
    GiveUp(job, key, target.wanted_event(), 1, kDropped, cursor, turn);
    return false;
  }
  cursor.under_way = true;
  busy_.insert(origin);
  turn.post = PlannedPost{target.url(), origin, index, *events.front()};
  return true;
}

PostPlan::Turn PostPlan::Next(const State& state, int64_t now_ms) {
  Turn turn;
  turn.wait_until_ms = std::numeric_limits<int64_t>::max();
  ++round_;
  const Index::Names& waiting = state.index().unsettled();
  auto at = waiting.upper_bound(last_job_);
  for (size_t seen = 0; seen < waiting.size(); ++seen, ++at) {
    if (at == waiting.end()) at = waiting.begin();
    const v1::JobRecord& job = *state.FindJob(*at);
    for (int32_t target = 0; target < job.notify_size(); ++target) {
      if (!Consider(state, job, target, now_ms, turn)) continue;
      last_job_ = job.id();
      return turn;
    }
  }
  Prune();
  return turn;
}

void PostPlan::Prune() {
  std::erase_if(cursors_, [this](const auto& entry) {
    return entry.second.round != round_ && !entry.second.under_way;
  });
  std::erase_if(failing_, [this](const auto& entry) { return entry.second.round != round_; });
}

PostPlan::End PostPlan::Ended(const PlannedPost& post, const PostResult& result, int64_t now_ms) {
  End end;
  busy_.erase(post.origin);
  Cursor& cursor = cursors_[{post.event.job(), post.target}];
  cursor.under_way = false;
  if (result.kind == PostResult::Kind::kFailed) {
    const auto [receiver, first] = failing_.try_emplace(post.url, options_.backoff);
    receiver->second.problem = result.problem;
    receiver->second.next_ms = now_ms + receiver->second.backoff.Next().count();
    receiver->second.round = round_;
    end.first_failure = first;
    return end;
  }
  const bool delivered = result.kind == PostResult::Kind::kDelivered;
  if (delivered) failing_.erase(post.url);
  cursor.settled = post.event.number();
  end.settled.emplace();
  end.settled->set_job(post.event.job());
  end.settled->set_target(post.target);
  end.settled->set_through_event(post.event.number());
  end.settled->set_delivered(delivered ? 1 : 0);
  end.settled->set_given_up(delivered ? 0 : 1);
  if (!delivered) end.settled->set_problem(result.problem);
  return end;
}

void PostPlan::NotStored(const v1::PostsSettled& settled) {
  const auto cursor = cursors_.find({settled.job(), settled.target()});
  if (cursor != cursors_.end()) cursor->second.settled = 0;
}

std::string PostBody(const std::string& cluster, const v1::Job& job, const v1::JobEvent& event) {
  const std::optional<NotifyEvent> posted = PostedAs(event);
  nlohmann::ordered_json body = {{"id", absl::StrCat(cluster, "/", event.job(), "/", event.number(),
                                                     "@", event.time_unix_ms())},
                                 {"cluster", cluster},
                                 {"job", event.job()},
                                 {"name", job.name()},
                                 {"owner", job.owner()},
                                 {"event", std::string(posted ? ChoiceName(*posted) : "unknown")},
                                 {"reason", event.text()},
                                 {"author", event.author()},
                                 {"time", TimeText(event.time_unix_ms())},
                                 {"step", event.step() >= 0 ? event.step() : job.next_step()},
                                 {"steps", job.shape().steps()},
                                 {"attempt", event.attempt()}};
  if (event.revision() > 0) body["revision"] = event.revision();
  if (event.has_alert()) body["alert"] = AlertBody(event.alert());
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string PostSignature(std::string_view secret, std::string_view body) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(body.data()), body.size(), digest, &size);
  return absl::StrCat("sha256=", absl::BytesToHexString(absl::string_view(
                                     reinterpret_cast<const char*>(digest), size)));
}

}  // namespace nibble
