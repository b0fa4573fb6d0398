#include "client/export/otlp_trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace nibble {
namespace {

using OtlpJson = nlohmann::ordered_json;

// Of opentelemetry.proto.trace.v1: Span.SpanKind and Status.StatusCode.
constexpr int kInternal = 1;
constexpr int kUnset = 0, kOk = 1, kError = 2;

// FNV-1a; never 0, which is no id.
uint64_t IdOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash == 0 ? 1 : hash;
}

std::string Hex(uint64_t id) { return absl::StrFormat("%016x", id); }

std::string Nanos(int64_t unix_ms) { return unix_ms <= 0 ? "0" : absl::StrCat(unix_ms, "000000"); }

OtlpJson Attribute(const std::string& key, const std::string& value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}
OtlpJson Attribute(const std::string& key, int64_t value) {
  return {{"key", key}, {"value", {{"intValue", absl::StrCat(value)}}}};
}

// "JOB_STATE_QUEUED" as "queued".
std::string Plain(const std::string& name, std::string_view prefix) {
  return absl::AsciiStrToLower(
      absl::StripPrefix(name, absl::string_view(prefix.data(), prefix.size())));
}

class TraceMaker {
 public:
  explicit TraceMaker(const JobLife& life)
      : life_(life),
        seed_(absl::StrCat(life.job.id(), "@", life.job.submitted_unix_ms())),
        trace_(Hex(IdOf(seed_)) + Hex(IdOf(seed_ + "#"))) {}

  OtlpJson Make();

 private:
  // Adds a span and returns its index. `path`: unique within the trace.
  size_t Add(const std::string& path, const std::string& parent, const std::string& name,
             int64_t begin_ms, int64_t end_ms, OtlpJson attributes);
  void SetStatus(size_t span, int code, const std::string& message);
  void AddJob();
  void AddStates();
  void AddAttempt(const v1::Attempt& attempt);
  void AddCheckpoints();
  void AddEvents();

  const JobLife& life_;
  const std::string seed_, trace_;
  OtlpJson spans_ = OtlpJson::array();
  size_t job_ = 0;
  std::map<int64_t, size_t> attempts_;  // spans by number
};

size_t TraceMaker::Add(const std::string& path, const std::string& parent, const std::string& name,
                       int64_t begin_ms, int64_t end_ms, OtlpJson attributes) {
  OtlpJson span = {{"traceId", trace_}, {"spanId", Hex(IdOf(absl::StrCat(seed_, "/", path)))}};
  if (!parent.empty()) span["parentSpanId"] = Hex(IdOf(absl::StrCat(seed_, "/", parent)));
  span["name"] = name;
  span["kind"] = kInternal;
  span["startTimeUnixNano"] = Nanos(begin_ms);
  span["endTimeUnixNano"] = Nanos(std::max(begin_ms, end_ms > 0 ? end_ms : life_.now_unix_ms));
  span["attributes"] = std::move(attributes);
  span["events"] = OtlpJson::array();
  span["status"] = {{"code", kUnset}};
  spans_.push_back(std::move(span));
  return spans_.size() - 1;
}

void TraceMaker::SetStatus(size_t span, int code, const std::string& message) {
  OtlpJson& status = spans_[span]["status"];
  status["code"] = code;
  // OTLP allows a message only beside an error.
  if (code == kError && !message.empty()) status["message"] = message;
}

void TraceMaker::AddJob() {
  const v1::Job& job = life_.job;
  const std::string state = Plain(v1::JobState_Name(job.state()), "JOB_STATE_");
  job_ = Add("job", "", absl::StrCat("job ", job.id()), job.submitted_unix_ms(),
             job.finished_unix_ms(),
             {Attribute("nibble.job.id", job.id()), Attribute("nibble.job.owner", job.owner()),
              Attribute("nibble.job.state", state),
              Attribute("nibble.job.queue", job.scheduling().queue()),
              Attribute("nibble.job.priority", job.scheduling().priority()),
              Attribute("nibble.model", job.shape().model()),
              Attribute("nibble.model.parameters", job.shape().parameters()),
              Attribute("nibble.job.steps", job.shape().steps()),
              Attribute("nibble.job.next_step", job.next_step()),
              Attribute("nibble.job.attempts", job.attempts())});
  if (job.state() == v1::JOB_STATE_SUCCEEDED) SetStatus(job_, kOk, "");
  if (job.state() == v1::JOB_STATE_FAILED) SetStatus(job_, kError, job.state_reason());
}

void TraceMaker::AddStates() {
  int64_t since = life_.job.submitted_unix_ms();
  int64_t number = 0;
  const auto add = [&](v1::JobState state, int64_t until, const std::string& why) {
    const std::string name = Plain(v1::JobState_Name(state), "JOB_STATE_");
    OtlpJson attributes = {Attribute("nibble.job.state", name)};
    if (!why.empty()) attributes.push_back(Attribute("nibble.left_because", why));
    Add(absl::StrCat("state/", ++number), "job", name, since, until, std::move(attributes));
    since = until;
  };
  for (const v1::JobEvent& event : life_.events) {
    if (event.kind() != v1::JOB_EVENT_KIND_MOVED || event.from() == v1::JOB_STATE_UNSPECIFIED) {
      continue;
    }
    add(event.from(), event.time_unix_ms(), event.text());
  }
  if (life_.job.finished_unix_ms() == 0) add(life_.job.state(), life_.now_unix_ms, "");
}

void TraceMaker::AddAttempt(const v1::Attempt& attempt) {
  const std::string path = absl::StrCat("attempt/", attempt.number());
  OtlpJson attributes = {
      Attribute("nibble.attempt", attempt.number()), Attribute("nibble.ranks", attempt.world()),
      Attribute("nibble.outcome",
                Plain(v1::AttemptOutcome_Name(attempt.outcome()), "ATTEMPT_OUTCOME_"))};
  if (attempt.has_resume()) {
    attributes.push_back(Attribute("nibble.resumed.job", attempt.resume().job()));
    attributes.push_back(Attribute("nibble.resumed.step", attempt.resume().step()));
  }
  const size_t span =
      Add(path, "job", absl::StrCat("attempt ", attempt.number()), attempt.launched_unix_ms(),
          attempt.ended_unix_ms(), std::move(attributes));
  attempts_[attempt.number()] = span;
  switch (attempt.outcome()) {
    case v1::ATTEMPT_OUTCOME_SUCCEEDED:
      SetStatus(span, kOk, "");
      break;
    case v1::ATTEMPT_OUTCOME_FAILED:
    case v1::ATTEMPT_OUTCOME_HUNG:
    case v1::ATTEMPT_OUTCOME_LOST:
      SetStatus(span, kError, attempt.reason());
      break;
    default:
      break;
  }
  const bool ran = attempt.running_unix_ms() > 0;
  Add(absl::StrCat(path, "/launch"), path, "launch", attempt.launched_unix_ms(),
      ran ? attempt.running_unix_ms() : attempt.ended_unix_ms(), OtlpJson::array());
  if (!ran) return;
  for (const v1::Placement& placement : attempt.placements()) {
    const int64_t first = placement.first_rank();
    const int64_t last = first + std::max(placement.slots_size(), 1) - 1;
    Add(absl::StrCat(path, "/ranks/", first), path,
        first == last ? absl::StrCat("rank ", first, " on ", placement.worker())
                      : absl::StrCat("ranks ", first, " to ", last, " on ", placement.worker()),
        attempt.running_unix_ms(), attempt.ended_unix_ms(),
        {Attribute("nibble.worker", placement.worker()), Attribute("nibble.first_rank", first),
         Attribute("nibble.last_rank", last)});
  }
}

void TraceMaker::AddCheckpoints() {
  for (const v1::Checkpoint& checkpoint : life_.checkpoints) {
    const auto attempt = attempts_.find(checkpoint.ref().attempt());
    Add(absl::StrCat("checkpoint/", checkpoint.ref().step(), "/", checkpoint.ref().attempt()),
        attempt == attempts_.end() ? "job" : absl::StrCat("attempt/", attempt->first),
        absl::StrCat("checkpoint of step ", checkpoint.ref().step()),
        checkpoint.first_shard_unix_ms(), checkpoint.committed_unix_ms(),
        {Attribute("nibble.step", checkpoint.ref().step()),
         Attribute("nibble.checkpoint.state",
                   Plain(v1::CheckpointState_Name(checkpoint.state()), "CHECKPOINT_STATE_")),
         Attribute("nibble.checkpoint.shards", checkpoint.world()),
         Attribute("nibble.checkpoint.bytes", checkpoint.bytes())});
  }
}

void TraceMaker::AddEvents() {
  for (const v1::JobEvent& event : life_.events) {
    if (event.kind() == v1::JOB_EVENT_KIND_MOVED) continue;
    const auto attempt = attempts_.find(event.attempt());
    OtlpJson attributes = OtlpJson::array();
    if (!event.text().empty()) attributes.push_back(Attribute("nibble.text", event.text()));
    if (!event.author().empty()) attributes.push_back(Attribute("nibble.author", event.author()));
    if (event.step() >= 0) attributes.push_back(Attribute("nibble.step", event.step()));
    if (event.revision() > 0) {
      attributes.push_back(Attribute("nibble.recipe.revision", event.revision()));
    }
    spans_[attempt == attempts_.end() ? job_ : attempt->second]["events"].push_back(
        {{"timeUnixNano", Nanos(event.time_unix_ms())},
         {"name", Plain(v1::JobEventKind_Name(event.kind()), "JOB_EVENT_KIND_")},
         {"attributes", std::move(attributes)}});
  }
}

OtlpJson TraceMaker::Make() {
  AddJob();
  AddStates();
  for (const v1::Attempt& attempt : life_.job.recent_attempts()) AddAttempt(attempt);
  if (life_.job.has_attempt()) AddAttempt(life_.job.attempt());
  AddCheckpoints();
  AddEvents();
  OtlpJson scope = {{"scope", {{"name", "nibble"}, {"version", life_.version}}},
                    {"spans", std::move(spans_)}};
  OtlpJson resource = {
      {"resource",
       {{"attributes",
         {Attribute("service.name", "nibble"), Attribute("service.version", life_.version)}}}},
      {"scopeSpans", OtlpJson::array({std::move(scope)})}};
  return {{"resourceSpans", OtlpJson::array({std::move(resource)})}};
}

}  // namespace

OtlpJson OtlpTrace(const JobLife& life) { return TraceMaker(life).Make(); }

int64_t SpansOf(const OtlpJson& trace) {
  int64_t spans = 0;
  for (const OtlpJson& resource : trace.at("resourceSpans")) {
    for (const OtlpJson& scope : resource.at("scopeSpans")) {
      spans += static_cast<int64_t>(scope.at("spans").size());
    }
  }
  return spans;
}

}  // namespace nibble
