#include "server/notify/alert_book.h"

#include <chrono>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/testing.h"
#include "server/notify/alert_intake.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A body with one alert, as Prometheus writes it.
std::string BodyOf(const std::string& labels, int64_t until_unix_ms) {
  return absl::StrCat(
      R"([{"annotations":{"summary":"Loss is 90","runbook_url":"docs/x.md"},"endsAt":")",
      absl::FormatTime(absl::RFC3339_full, absl::FromUnixMillis(until_unix_ms),
                       absl::UTCTimeZone()),
      R"(","startsAt":"2026-01-31T12:00:00.123Z","generatorURL":"http://p/graph","labels":)",
      labels, "}]");
}

class AlertIntakeTest : public testing::Test {
 protected:
  std::string Labels(const std::string& name, const std::string& more = "") const {
    return absl::StrCat(R"({"alertname":")", name, R"(","severity":"page","job":")", job_, "\"",
                        more, "}");
  }
  // Sends what Prometheus would: it fires for another minute, or has ended.
  absl::Status Send(const std::string& labels, bool fires = true) {
    return intake_.Take(BodyOf(labels, coordinator_.clock.NowUnixMs() + (fires ? 60'000 : 0)));
  }
  void Pass(int64_t ms) {
    coordinator_.clock.Advance(ms);
    intake_.Tick();
    coordinator_.controller().Settle();
  }
  // The alerts' events of the job.
  std::vector<std::string> Events() {
    v1::ListJobEventsRequest request;
    request.set_job(job_);
    std::vector<std::string> texts;
    const auto listed = coordinator_.controller().Read(request);
    EXPECT_EQ(listed.status(), absl::OkStatus());
    if (!listed.ok()) return texts;
    for (const v1::JobEvent& event : listed->events()) {
      if (event.kind() == v1::JOB_EVENT_KIND_ALERT) texts.push_back(event.text());
    }
    return texts;
  }

  TestCoordinator coordinator_;
  const std::string job_ = coordinator_.Submit();
  AlertIntake intake_{coordinator_.controller()};
};

constexpr char kFires[] = "NibbleLossSpike fires (page): Loss is 90";
constexpr char kResolved[] = "NibbleLossSpike is resolved: Loss is 90";

TEST_F(AlertIntakeTest, AFiringAlertIsRecordedOnceAndResolvedOnce) {
  for (int times = 0; times < 3; ++times) {
    EXPECT_EQ(Send(Labels("NibbleLossSpike")), absl::OkStatus());
    Pass(30'000);
  }
  EXPECT_THAT(Events(), ElementsAre(kFires));
  for (int times = 0; times < 3; ++times) {
    EXPECT_EQ(Send(Labels("NibbleLossSpike"), /*fires=*/false), absl::OkStatus());
  }
  EXPECT_THAT(Events(), ElementsAre(kFires, kResolved));
  EXPECT_EQ(Send(Labels("NibbleLossSpike")), absl::OkStatus());
  EXPECT_THAT(Events(), ElementsAre(kFires, kResolved, kFires));
}

TEST_F(AlertIntakeTest, InstancesOfOneRuleAreOneAlertThatEndsWithTheLast) {
  const auto layer = [this](int number) {
    return Labels("NibbleLossSpike", absl::StrCat(R"(,"layer":"blocks.)", number, "\""));
  };
  for (int number = 0; number < 9; ++number) EXPECT_EQ(Send(layer(number)), absl::OkStatus());
  for (int number = 0; number < 8; ++number)
    EXPECT_EQ(Send(layer(number), false), absl::OkStatus());
  EXPECT_THAT(Events(), ElementsAre(kFires));
  EXPECT_EQ(Send(layer(8), false), absl::OkStatus());
  EXPECT_THAT(Events(), ElementsAre(kFires, kResolved));
}

TEST_F(AlertIntakeTest, AnAlertThatIsNoLongerRepeatedEndsAlsoAfterARestart) {
  const std::string expired =
      "NibbleLossSpike is resolved, since it is no longer repeated: Loss is 90";
  EXPECT_EQ(Send(Labels("NibbleLossSpike")), absl::OkStatus());
  Pass(59'000);
  EXPECT_THAT(Events(), ElementsAre(kFires));
  Pass(2'000);
  EXPECT_THAT(Events(), ElementsAre(kFires, expired));

  EXPECT_EQ(Send(Labels("NibbleLossSpike")), absl::OkStatus());
  // As after a restart of the coordinator: another intake on the same state.
  AlertIntake later(coordinator_.controller());
  coordinator_.clock.Advance(AlertBook::kAdoptedMs - 1000);
  later.Tick();
  coordinator_.controller().Settle();
  EXPECT_THAT(Events(), ElementsAre(kFires, expired, kFires));
  coordinator_.clock.Advance(2000);
  later.Tick();
  coordinator_.controller().Settle();
  EXPECT_THAT(Events(), ElementsAre(kFires, expired, kFires, expired));
}

TEST_F(AlertIntakeTest, AlertsOfOtherClustersUnknownJobsAndNoJobAreLeftOut) {
  EXPECT_EQ(Send(R"({"alertname":"NibbleWorkerLost","job":"nibble"})"), absl::OkStatus());
  EXPECT_EQ(Send(R"({"alertname":"NibbleWorkerLost"})"), absl::OkStatus());
  EXPECT_EQ(Send(Labels("NibbleLossSpike", R"(,"cluster":"another")")), absl::OkStatus());
  EXPECT_THAT(Events(), ElementsAre());
}

TEST_F(AlertIntakeTest, WithoutAnAnswerOfTheStoreAlertsAreRefusedAndNotLost) {
  AlertIntake impatient(coordinator_.controller(), std::chrono::milliseconds(1));
  coordinator_.store().Hold();
  const std::string body =
      BodyOf(Labels("NibbleLossSpike"), coordinator_.clock.NowUnixMs() + 60'000);
  const absl::Status refused = impatient.Take(body);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("has not answered for 1 ms"));
  coordinator_.store().Release();
  coordinator_.controller().Settle();
  EXPECT_EQ(impatient.Take(body), absl::OkStatus());
  EXPECT_THAT(Events(), ElementsAre(kFires));
}

TEST_F(AlertIntakeTest, AllAlertsEndAtOnceAlsoIfOneUpdateCouldNotHaveThem) {
  const std::string text(static_cast<size_t>(kMaxPathBytes), 'x');
  std::string more;
  for (const char* const label : {"action", "guard", "layer", "operand", "rank", "worker"}) {
    absl::StrAppend(&more, ",\"", label, "\":\"", text, "\"");
  }
  std::vector<std::string> jobs;
  int64_t bytes = 0;
  while (bytes < 2 * kMaxUpdateBytes) {
    jobs.push_back(coordinator_.Submit());
    std::string body;
    for (int number = 0; number < kMaxAlerts; ++number) {
      absl::StrAppend(&body, body.empty() ? "[" : ",", R"({"labels":{"alertname":"A)", number,
                      R"(","job":")", jobs.back(), "\"", more, "}}");
    }
    bytes += static_cast<int64_t>(body.size());
    ASSERT_EQ(intake_.Take(body + "]"), absl::OkStatus());
  }
  const auto firing = [&] {
    int64_t count = 0;
    for (const std::string& job : jobs) count += coordinator_.Job(job).alerts_size();
    return count;
  };
  EXPECT_EQ(firing(), std::ssize(jobs) * kMaxAlerts);
  // Their Prometheus is gone.
  Pass(AlertBook::kDefaultMs + 1000);
  EXPECT_EQ(firing(), 0);
}

TEST(ParseAlerts, RefusesWhatIsNotAlertsByName) {
  const auto error = [](const std::string& body) {
    const auto parsed = ParseAlerts(body);
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << body;
    return std::string(parsed.status().message());
  };
  EXPECT_EQ(error(""), "body: is not a JSON array of alerts");
  EXPECT_EQ(error("{}"), "body: is not a JSON array of alerts");
  EXPECT_EQ(error("[{]"), "body: is not a JSON array of alerts");
  EXPECT_EQ(error("[1]"), "alerts[0]: is not an object");
  EXPECT_EQ(error(R"([{}, {"labels": []}])"), "alerts[1].labels: is not an object");
  EXPECT_EQ(error(R"([{"labels": {"job": 3}}])"), "alerts[0].labels.job: is not a text");
  EXPECT_EQ(error(R"([{"annotations": {"summary": null}}])"),
            "alerts[0].annotations.summary: is not a text");
  EXPECT_EQ(error(R"([{"startsAt": 5}])"), "alerts[0].startsAt: is not a text");
  EXPECT_THAT(error(R"([{"endsAt": "soon"}])"),
              HasSubstr("alerts[0].endsAt: 'soon' is not a time"));
  EXPECT_THAT(error(absl::StrCat(R"([{"labels": {"alertname": ")", std::string(81, 'a'), "\"}}]")),
              HasSubstr(" has 81 bytes; at most 80 are allowed"));
  std::string many = "[{}";
  for (size_t i = 1; i < kMaxAlertsAtOnce; ++i) many += ",{}";
  EXPECT_EQ(ParseAlerts(many + "]").status(), absl::OkStatus());
  many += ",{}";
  EXPECT_EQ(error(many + "]"), "body: 257 alerts; allowed: 0 to 256");
  EXPECT_THAT(error("[{\"labels\": {\"job\": \"\xff\"}}]"), HasSubstr("is not a JSON array"));
}

TEST(ParseAlerts, AnAlertHasABoundedNumberOfLabels) {
  std::string labels = R"("l1":"x")";
  for (size_t i = 2; i <= kMaxAlertLabels; ++i) absl::StrAppend(&labels, ",\"l", i, "\":\"x\"");
  EXPECT_EQ(ParseAlerts(absl::StrCat(R"([{"labels":{)", labels, "}}]")).status(), absl::OkStatus());
  EXPECT_EQ(ParseAlerts(absl::StrCat(R"([{"labels":{"l0":"x",)", labels, "}}]")).status().message(),
            "alerts[0].labels: 65 entries; allowed: 0 to 64");
}

TEST(ParseAlerts, KeepsTheLabelsOfOurRulesAndTextsInOneLine) {
  const auto parsed = ParseAlerts(
      R"([{"labels": {"alertname": "A", "job": "train-1", "rank": "3", "team": "x"},
           "annotations": {"summary": " two\n lines\u0007 "}}])");
  ASSERT_EQ(parsed.status(), absl::OkStatus());
  ASSERT_EQ(parsed->size(), 1u);
  const v1::JobAlert& alert = parsed->front().alert;
  EXPECT_EQ(alert.summary(), "two lines");
  ASSERT_EQ(alert.labels_size(), 1);
  EXPECT_EQ(alert.labels(0).key(), "rank");
  EXPECT_EQ(alert.labels(0).value(), "3");
}

TEST_F(AlertIntakeTest, InstancesAreBoundedAndThoseThatFireAreRepeated) {
  const State state = coordinator_.controller().Inspect([](const State& shown) { return shown; });
  AlertBook book(state, 1000);
  std::vector<ReceivedAlert> received(kMaxAlertInstances);
  for (size_t i = 0; i < received.size(); ++i) {
    received[i].job = job_;
    received[i].alert.set_name("NibbleLossSpike");
    received[i].instance = i + 1;
  }
  EXPECT_EQ(book.Take(received, state, 1000), absl::OkStatus());
  ReceivedAlert more = received[0];
  EXPECT_EQ(book.Take({more}, state, 1000), absl::OkStatus());
  more.instance = kMaxAlertInstances + 1;
  const absl::Status refused = book.Take({more}, state, 1000);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(refused.message(), HasSubstr("20000 fire; allowed: 0 to 20000"));
  // One that ends makes room for one.
  received[0].until_unix_ms = 999;
  EXPECT_EQ(book.Take({received[0]}, state, 1000), absl::OkStatus());
  EXPECT_EQ(book.Take({more}, state, 1000), absl::OkStatus());
}

}  // namespace
}  // namespace nibble
