#include "client/export/otlp_trace.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

v1::JobEvent Moved(int64_t time, v1::JobState from, v1::JobState to) {
  v1::JobEvent event;
  event.set_kind(v1::JOB_EVENT_KIND_MOVED);
  event.set_time_unix_ms(time);
  event.set_from(from);
  event.set_to(to);
  event.set_step(-1);
  return event;
}

// Submitted at 1000 ms, launched at 2000, running at 3000, a checkpoint at 5000, ended at 9000.
JobLife Finished() {
  JobLife life;
  life.version = "0.1.0";
  life.now_unix_ms = 20'000;
  v1::Job& job = life.job;
  job.set_id("train-7");
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  job.set_submitted_unix_ms(1000);
  job.set_finished_unix_ms(9000);
  v1::Attempt& attempt = *job.add_recent_attempts();
  attempt.set_number(1);
  attempt.set_world(3);
  attempt.set_launched_unix_ms(2000);
  attempt.set_running_unix_ms(3000);
  attempt.set_ended_unix_ms(9000);
  attempt.set_outcome(v1::ATTEMPT_OUTCOME_SUCCEEDED);
  for (int first : {0, 2}) {
    v1::Placement& placement = *attempt.add_placements();
    placement.set_worker(first == 0 ? "w1" : "w2");
    placement.set_first_rank(first);
    for (int slot = 0; slot < 2 - first / 2; ++slot) placement.add_slots(slot);
  }
  life.events = {Moved(2000, v1::JOB_STATE_QUEUED, v1::JOB_STATE_STARTING),
                 Moved(3000, v1::JOB_STATE_STARTING, v1::JOB_STATE_RUNNING),
                 Moved(9000, v1::JOB_STATE_RUNNING, v1::JOB_STATE_SUCCEEDED)};
  v1::JobEvent& committed = life.events.emplace_back();
  committed.set_kind(v1::JOB_EVENT_KIND_CHECKPOINT);
  committed.set_time_unix_ms(5000);
  committed.set_attempt(1);
  committed.set_step(400);
  v1::Checkpoint& checkpoint = life.checkpoints.emplace_back();
  checkpoint.mutable_ref()->set_step(400);
  checkpoint.mutable_ref()->set_attempt(1);
  checkpoint.set_first_shard_unix_ms(4500);
  checkpoint.set_committed_unix_ms(5000);
  return life;
}

std::map<std::string, Json> ByName(const Json& trace) {
  std::map<std::string, Json> spans;
  for (const Json& span : trace["resourceSpans"][0]["scopeSpans"][0]["spans"]) {
    spans[span["name"]] = span;
  }
  return spans;
}

TEST(OtlpTraceTest, TheLifeOfAJobIsATreeOfSpans) {
  const Json trace = OtlpTrace(Finished());
  std::map<std::string, Json> spans = ByName(trace);
  EXPECT_EQ(SpansOf(trace), 9);
  const auto lasts = [&](const std::string& name, const std::string& begin, const std::string& end,
                         const std::string& parent) {
    const Json& span = spans.at(name);
    EXPECT_EQ(span["startTimeUnixNano"], begin + "000000") << name;
    EXPECT_EQ(span["endTimeUnixNano"], end + "000000") << name;
    EXPECT_EQ(span["parentSpanId"], spans.at(parent)["spanId"]) << name;
  };
  EXPECT_FALSE(spans.at("job train-7").contains("parentSpanId"));
  EXPECT_EQ(spans.at("job train-7")["status"]["code"], 1);
  lasts("queued", "1000", "2000", "job train-7");
  lasts("starting", "2000", "3000", "job train-7");
  lasts("running", "3000", "9000", "job train-7");
  lasts("attempt 1", "2000", "9000", "job train-7");
  lasts("launch", "2000", "3000", "attempt 1");
  lasts("ranks 0 to 1 on w1", "3000", "9000", "attempt 1");
  lasts("rank 2 on w2", "3000", "9000", "attempt 1");
  lasts("checkpoint of step 400", "4500", "5000", "attempt 1");
  const Json& events = spans.at("attempt 1")["events"];
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["name"], "checkpoint");
  EXPECT_EQ(events[0]["timeUnixNano"], "5000000000");
}

TEST(OtlpTraceTest, IdsAreHexadecimalDistinctAndTheSameInALaterTrace) {
  JobLife life = Finished();
  const Json trace = OtlpTrace(life);
  std::set<std::string> ids;
  for (const auto& [name, span] : ByName(trace)) {
    EXPECT_EQ(span["traceId"].get<std::string>().size(), 32u);
    EXPECT_EQ(span["spanId"].get<std::string>().size(), 16u);
    EXPECT_EQ(span["spanId"].get<std::string>().find_first_not_of("0123456789abcdef"),
              std::string::npos);
    ids.insert(span["spanId"]);
  }
  EXPECT_EQ(ids.size(), 9u);
  life.now_unix_ms += 5000;
  EXPECT_EQ(OtlpTrace(life), trace);
}

TEST(OtlpTraceTest, SpansOfAJobThatRunsEndNowAndAFailureIsAnError) {
  JobLife life = Finished();
  life.job.set_state(v1::JOB_STATE_RUNNING);
  life.job.set_finished_unix_ms(0);
  life.events.erase(life.events.begin() + 2);
  v1::Attempt live = life.job.recent_attempts(0);
  live.set_ended_unix_ms(0);
  live.set_outcome(v1::ATTEMPT_OUTCOME_UNSPECIFIED);
  life.job.clear_recent_attempts();
  *life.job.mutable_attempt() = live;
  std::map<std::string, Json> spans = ByName(OtlpTrace(life));
  EXPECT_EQ(spans.at("job train-7")["endTimeUnixNano"], "20000000000");
  EXPECT_EQ(spans.at("running")["endTimeUnixNano"], "20000000000");
  EXPECT_EQ(spans.at("attempt 1")["status"]["code"], 0);

  JobLife failed = Finished();
  failed.job.set_state(v1::JOB_STATE_FAILED);
  failed.job.set_state_reason("rank 1 ended");
  spans = ByName(OtlpTrace(failed));
  EXPECT_EQ(spans.at("job train-7")["status"]["code"], 2);
  EXPECT_EQ(spans.at("job train-7")["status"]["message"], "rank 1 ended");
}

}  // namespace
}  // namespace nibble
