#include "server/notify/alert_book.h"

#include <algorithm>
#include <optional>

#include "absl/hash/hash.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/state/decide.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

// The labels of our rules that say what about the job an instance is of; others stay out of posts.
constexpr const char* kShownLabels[] = {"action", "guard", "layer", "operand", "rank", "worker"};

// Stands for the unknown instances of an alert that fired before a restart.
constexpr uint64_t kAdopted = 0;

absl::Status AlertProblem(size_t index, absl::string_view field, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("alerts[", index, "].", field, ": ", problem));
}

// The field's texts by name; empty if there is no such field.
absl::StatusOr<std::map<std::string, std::string>> TextsOf(const Json& alert, size_t index,
                                                           const char* field) {
  std::map<std::string, std::string> texts;
  const auto at = alert.find(field);
  if (at == alert.end()) return texts;
  if (!at->is_object()) return AlertProblem(index, field, "is not an object");
  if (at->size() > kMaxAlertLabels) {
    return AlertProblem(index, field,
                        absl::StrCat(at->size(), " entries; allowed: 0 to ", kMaxAlertLabels));
  }
  for (const auto& [name, value] : at->items()) {
    if (!value.is_string()) {
      return AlertProblem(index, absl::StrCat(field, ".", Clip(name, kMaxNameBytes)),
                          "is not a text");
    }
    texts[name] = value.get<std::string>();
  }
  return texts;
}

// 0: not given. Prometheus writes RFC 3339.
absl::StatusOr<int64_t> TimeOf(const Json& alert, size_t index, const char* field) {
  const auto at = alert.find(field);
  if (at == alert.end()) return 0;
  absl::Time time;
  std::string why;
  if (!at->is_string()) return AlertProblem(index, field, "is not a text");
  const std::string text = at->get<std::string>();
  if (!absl::ParseTime(absl::RFC3339_full, text, &time, &why)) {
    return AlertProblem(index, field,
                        absl::StrCat("'", Clip(text, kMaxNameBytes),
                                     "' is not a time such as "
                                     "2026-01-31T12:00:00Z"));
  }
  return std::max<int64_t>(0, absl::ToUnixMillis(time));
}

std::string TextIn(const std::map<std::string, std::string>& texts, const char* name) {
  const auto at = texts.find(name);
  return at == texts.end() ? "" : at->second;
}

// One line of a text for people, of any length.
std::string LineOf(std::string text) {
  text = OneLine(text);
  absl::RemoveExtraAsciiWhitespace(&text);
  return Clip(text, kMaxPathBytes);
}

// Unset: it is not about a job.
absl::StatusOr<std::optional<ReceivedAlert>> ParseAlert(const Json& json, size_t index) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("alerts[", index, "]: is not an object"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto labels, TextsOf(json, index, "labels"));
  NIBBLE_ASSIGN_OR_RETURN(const auto annotations, TextsOf(json, index, "annotations"));
  ReceivedAlert received = {.job = TextIn(labels, "job"), .cluster = TextIn(labels, "cluster")};
  v1::JobAlert& alert = received.alert;
  NIBBLE_ASSIGN_OR_RETURN(const int64_t starts, TimeOf(json, index, "startsAt"));
  NIBBLE_ASSIGN_OR_RETURN(received.until_unix_ms, TimeOf(json, index, "endsAt"));
  alert.set_starts_unix_ms(starts);
  alert.set_name(TextIn(labels, "alertname"));
  alert.set_severity(TextIn(labels, "severity"));
  alert.set_summary(LineOf(TextIn(annotations, "summary")));
  alert.set_runbook_url(TextIn(annotations, "runbook_url"));
  for (const char* const name : kShownLabels) {
    const auto at = labels.find(name);
    if (at == labels.end()) continue;
    v1::Label& label = *alert.add_labels();
    label.set_key(name);
    label.set_value(LineOf(at->second));
  }
  if (const absl::Status bounds = CheckBounds(alert); !bounds.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("alerts[", index, "]: ", bounds.message()));
  }
  if (received.job.empty() || alert.name().empty()) return std::nullopt;
  received.instance = absl::HashOf(labels);
  return received;
}

}  // namespace

absl::StatusOr<std::vector<ReceivedAlert>> ParseAlerts(std::string_view body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) return absl::InvalidArgumentError("body: is not a JSON array of alerts");
  if (json.size() > kMaxAlertsAtOnce) {
    return absl::InvalidArgumentError(
        absl::StrCat("body: ", json.size(), " alerts; allowed: 0 to ", kMaxAlertsAtOnce));
  }
  std::vector<ReceivedAlert> alerts;
  for (size_t i = 0; i < json.size(); ++i) {
    NIBBLE_ASSIGN_OR_RETURN(std::optional<ReceivedAlert> alert, ParseAlert(json[i], i));
    if (alert) alerts.push_back(*std::move(alert));
  }
  return alerts;
}

AlertBook::AlertBook(const State& state, int64_t now_unix_ms) {
  for (const auto& [id, job] : state.tables().jobs) {
    for (const v1::JobAlert& alert : job->alerts()) {
      alerts_[{id, alert.name()}] = {.first = alert,
                                     .instances = {{kAdopted, now_unix_ms + kAdoptedMs}}};
      ++instances_;
    }
  }
}

absl::Status AlertBook::Take(const std::vector<ReceivedAlert>& received, const State& state,
                             int64_t now_unix_ms) {
  for (const ReceivedAlert& one : received) {
    if (!one.cluster.empty() && one.cluster != state.cluster()) continue;
    if (state.FindJob(one.job) == nullptr) continue;
    const Key key(one.job, one.alert.name());
    const int64_t until = one.until_unix_ms > 0 ? one.until_unix_ms : now_unix_ms + kDefaultMs;
    if (until <= now_unix_ms) {
      const auto at = alerts_.find(key);
      if (at == alerts_.end()) continue;
      // After a restart the instances that fire are not known: then it is one of them.
      auto& instances = at->second.instances;
      const size_t ended = instances.erase(one.instance) + instances.erase(kAdopted);
      instances_ -= ended;
      if (ended > 0) at->second.expired = false;
      continue;
    }
    const auto known = alerts_.find(key);
    const bool repeated = known != alerts_.end() && known->second.instances.contains(one.instance);
    if (!repeated && instances_ >= kMaxAlertInstances) {
      return absl::ResourceExhaustedError(
          absl::StrCat("alerts: ", instances_, " fire; allowed: 0 to ", kMaxAlertInstances));
    }
    Alert& alert = alerts_[key];
    if (alert.instances.empty()) {
      alert.first = one.alert;
      if (alert.first.starts_unix_ms() == 0) alert.first.set_starts_unix_ms(now_unix_ms);
    }
    instances_ -= alert.instances.erase(kAdopted);
    if (!repeated) ++instances_;
    alert.instances[one.instance] = until;
  }
  return absl::OkStatus();
}

std::vector<v1::AlertChanged> AlertBook::Changes(const State& state, int64_t now_unix_ms) {
  std::vector<v1::AlertChanged> changes;
  for (auto at = alerts_.begin(); at != alerts_.end();) {
    const auto& [job_id, name] = at->first;
    Alert& alert = at->second;
    const size_t expired = std::erase_if(
        alert.instances, [now_unix_ms](const auto& entry) { return entry.second <= now_unix_ms; });
    instances_ -= expired;
    if (expired > 0) alert.expired = true;
    const v1::JobRecord* const job = state.FindJob(job_id);
    const v1::JobAlert* const stored = job == nullptr ? nullptr : FindAlert(*job, name);
    const bool fires = !alert.instances.empty();
    if (job == nullptr || (!fires && stored == nullptr)) {
      instances_ -= alert.instances.size();
      at = alerts_.erase(at);
      continue;
    }
    if (fires != (stored != nullptr)) {
      v1::AlertChanged& change = changes.emplace_back();
      change.set_job(job_id);
      *change.mutable_alert() = fires ? alert.first : *stored;
      if (!fires) {
        change.mutable_alert()->set_ends_unix_ms(now_unix_ms);
        if (alert.expired) change.set_reason("since it is no longer repeated");
      }
    }
    ++at;
  }
  return changes;
}

}  // namespace nibble
