// A whole coordinator in this process, as Prometheus and its clients see it.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/exposition_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "server/controller/testing.h"
#include "server/metrics/coordinator_http.h"
#include "server/service/coordinator_server.h"

namespace nibble {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::chrono::seconds kDeadline(60);

class CoordinatorHttpTest : public testing::Test {
 protected:
  CoordinatorHttpTest() {
    auto server = CoordinatorServer::Start(controller(), {.listen = "127.0.0.1:0"});
    EXPECT_EQ(server.status(), absl::OkStatus());
    server_ = *std::move(server);
    auto http = CoordinatorHttp::Start(controller(), coordinator_.store(), controller().metrics(),
                                       {.listen = "127.0.0.1:0", .version = "1.2"});
    EXPECT_EQ(http.status(), absl::OkStatus());
    http_ = *std::move(http);
    http_->SetServing(true);
    stub_ = v1::Coordinator::NewStub(grpc::CreateChannel(
        absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials()));
  }

  Controller& controller() { return coordinator_.controller(); }
  static std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + kDeadline);
    return context;
  }
  Exposition Scrape() {
    const auto text = HttpGet(http_->port(), "/metrics");
    EXPECT_EQ(text.status(), absl::OkStatus());
    if (!text.ok()) return {};
    const auto read = Exposition::Parse(*text);
    EXPECT_EQ(read.status(), absl::OkStatus());
    return read.ok() ? *read : Exposition();
  }
  // A job runs, makes a checkpoint, and is restarted after the loss of a worker.
  void LiveThroughSomething() {
    TestWorker worker(coordinator_, "w1", 2);
    ASSERT_EQ(worker.Report(), absl::OkStatus());
    const std::string job = coordinator_.Submit(2);
    coordinator_.clock.Advance(3000);
    coordinator_.Tick();
    worker.Obey(1);
    worker.Store(5);
    v1::SetRecipeRequest set;
    set.set_job(job);
    set.set_expected_revision(1);
    v1::FieldSetting& setting = *set.mutable_change()->add_set();
    setting.set_field("fprop");
    setting.set_value("bf16");
    ASSERT_EQ(coordinator_.Do<v1::SetRecipeResponse>(set).status(), absl::OkStatus());
    coordinator_.clock.Advance(60'000);
    coordinator_.Tick();
    worker.Reconnect();
    worker.report.clear_gangs();
    ASSERT_EQ(worker.Report(), absl::OkStatus());
    coordinator_.clock.Advance(60'000);
    ASSERT_EQ(worker.Report(), absl::OkStatus());
    coordinator_.Tick();
  }

  // Its ranks never report the step of their switch.
  TestCoordinator coordinator_{{.switch_wait_ms = 0}};
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<CoordinatorHttp> http_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

TEST_F(CoordinatorHttpTest, AScrapeHasEveryRowOfTheTable) {
  EXPECT_THAT(Scrape().MissingOf(CoordinatorRows()), IsEmpty());
  LiveThroughSomething();
  const Exposition exposed = Scrape();
  EXPECT_THAT(exposed.MissingOf(CoordinatorRows()), IsEmpty());
  EXPECT_EQ(exposed.families().size(), CoordinatorRows().rows().size());
}

TEST_F(CoordinatorHttpTest, PromtoolAcceptsTheMetrics) {
  LiveThroughSomething();
  v1::ListJobsResponse listed;
  ASSERT_TRUE(stub_->ListJobs(Context().get(), {}, &listed).ok());
  const absl::Status checked = PromtoolCheck(*HttpGet(http_->port(), "/metrics"));
  if (absl::IsNotFound(checked)) GTEST_SKIP() << checked;
  EXPECT_EQ(checked, absl::OkStatus());
}

TEST_F(CoordinatorHttpTest, EventsOfJobsAreCounted) {
  LiveThroughSomething();
  const Exposition exposed = Scrape();
  EXPECT_EQ(exposed.Value("nibble_jobs{queue=\"default\",state=\"starting\"}") +
                exposed.Value("nibble_jobs{queue=\"default\",state=\"recovering\"}"),
            1);
  EXPECT_EQ(exposed.Value("nibble_jobs{queue=\"default\",state=\"running\"}"), 0);
  EXPECT_EQ(exposed.Value("nibble_job_queue_wait_seconds_count{queue=\"default\"}"), 1);
  EXPECT_EQ(exposed.Value("nibble_job_queue_wait_seconds_sum{queue=\"default\"}"), 3);
  EXPECT_EQ(exposed.Value("nibble_attempts_ended_total{outcome=\"lost\"}"), 1);
  EXPECT_EQ(exposed.Value("nibble_job_restarts_total{reason=\"lost\"}"), 1);
  EXPECT_EQ(exposed.Value("nibble_lease_expiries_total"), 1);
  EXPECT_EQ(exposed.Value("nibble_recipe_changes_total"), 1);
  EXPECT_EQ(exposed.Value("nibble_checkpoints_total{event=\"committed\"}"), 1);
  EXPECT_EQ(exposed.Value("nibble_checkpoint_stored_bytes_total"), 2000);
  EXPECT_EQ(exposed.Value("nibble_checkpoint_copies_missing"), 0);  // no other worker can take one
  EXPECT_EQ(exposed.Value("nibble_scheduling_decisions_total{action=\"start\"}"), 2);
  EXPECT_GT(exposed.Value("nibble_scheduling_pass_seconds_count"), 1);
  EXPECT_EQ(exposed.Value("nibble_slots"), 2);
  EXPECT_EQ(exposed.Value("nibble_slots_used"), 2);
  EXPECT_EQ(exposed.Value("nibble_entities{kind=\"spec\"}"), 1);
  EXPECT_GT(exposed.Value("nibble_entity_bytes{kind=\"spec\"}"), 100);
  EXPECT_GT(exposed.Value("nibble_worker_reports_total{code=\"OK\"}"), 3);
  EXPECT_EQ(exposed.Value("nibble_store_commits_total"), exposed.Value("nibble_journal_sequence"));
  EXPECT_GT(exposed.Value("nibble_store_write_seconds_count"), 5);
  EXPECT_EQ(exposed.Value("nibble_store_healthy"), 1);
  EXPECT_GT(exposed.Value("nibble_recovery_seconds{part=\"state\"}"), 0);
}

TEST_F(CoordinatorHttpTest, CallsAreCountedByMethodAndCode) {
  v1::ListJobsResponse listed;
  ASSERT_TRUE(stub_->ListJobs(Context().get(), {}, &listed).ok());
  v1::DescribeJobRequest request;
  request.set_job("train-9");
  v1::DescribeJobResponse described;
  EXPECT_EQ(stub_->DescribeJob(Context().get(), request, &described).error_code(),
            grpc::StatusCode::NOT_FOUND);
  {
    auto context = Context();
    auto stream = stub_->WatchJobs(context.get(), {});
    v1::WatchJobsResponse message;
    while (!message.caught_up()) ASSERT_TRUE(stream->Read(&message));
    EXPECT_EQ(Scrape().Value("nibble_watches_open"), 1);
    context->TryCancel();
    while (stream->Read(&message)) {
    }
    (void)stream->Finish();
  }
  const Exposition exposed = Scrape();
  EXPECT_EQ(exposed.Value("nibble_rpcs_total{code=\"OK\",method=\"ListJobs\"}"), 1);
  EXPECT_EQ(exposed.Value("nibble_rpcs_total{code=\"NOT_FOUND\",method=\"DescribeJob\"}"), 1);
  EXPECT_EQ(exposed.Value("nibble_rpc_seconds_count{method=\"ListJobs\"}"), 1);
  const std::string scraped = *HttpGet(http_->port(), "/metrics");
  EXPECT_EQ(scraped.find("nibble_rpc_seconds_count{method=\"WatchJobs\"}"), std::string::npos);
}

TEST_F(CoordinatorHttpTest, UnknownMethodsAddNoSeries) {
  CoordinatorMetrics& metrics = controller().metrics();
  for (int i = 0; i < 5000; ++i) {
    metrics.RpcEnded(absl::StrCat("/made.up/Call", i), absl::StatusCode::kUnimplemented, false, 1);
  }
  const Exposition exposed = Scrape();
  EXPECT_EQ(exposed.Value("nibble_rpcs_total{code=\"UNIMPLEMENTED\",method=\"other\"}"), 5000);
  EXPECT_LE(exposed.SeriesOf("nibble_rpcs_total"), 2u);
}

TEST_F(CoordinatorHttpTest, ThousandsOfJobsAddNoSeries) {
  coordinator_.Submit(1);
  coordinator_.Tick();
  const auto count = [this] {
    size_t series = 0;
    const Exposition exposed = Scrape();
    for (const auto& [name, family] : exposed.families()) series += family.series.size();
    return series;
  };
  const size_t before = count();
  constexpr int kJobs = 3000;
  for (int i = 0; i < kJobs; ++i) coordinator_.Submit(1);
  coordinator_.Tick();
  EXPECT_EQ(count(), before);
  EXPECT_EQ(Scrape().Value("nibble_jobs{queue=\"default\",state=\"queued\"}"), kJobs + 1);
}

TEST_F(CoordinatorHttpTest, AScrapeDoesNotWaitForTheState) {
  std::promise<void> held;
  std::promise<void> release;
  std::thread reader([&] {
    controller().Inspect([&](const State&) {
      held.set_value();
      release.get_future().wait();
      return 0;
    });
  });
  held.get_future().wait();
  // A writer waiting for this reader would block later readers, too.
  v1::SetQueueRequest request;
  request.set_request_id("request-q");
  request.mutable_queue()->set_name("q");
  const auto changed = std::make_shared<std::promise<absl::Status>>();
  controller().requests().Change<v1::SetQueueResponse>(
      request, "ann", [changed](const absl::StatusOr<v1::SetQueueResponse>& answer) {
        changed->set_value(answer.status());
      });
  EXPECT_THAT(Scrape().MissingOf(CoordinatorRows()), IsEmpty());
  release.set_value();
  reader.join();
  EXPECT_EQ(changed->get_future().get(), absl::OkStatus());
}

TEST_F(CoordinatorHttpTest, ProbesShowLivenessAndReadiness) {
  EXPECT_EQ(HttpGet(http_->port(), "/healthz").status(), absl::OkStatus());
  EXPECT_EQ(HttpGet(http_->port(), "/readyz").status(), absl::OkStatus());
  http_->SetServing(false);
  EXPECT_THAT(std::string(HttpGet(http_->port(), "/readyz").status().message()),
              HasSubstr("503: the coordinator does not accept calls"));
  http_->SetServing(true);
  const auto next = static_cast<int64_t>(coordinator_.store().Info().last_sequence) + 1;
  coordinator_.store().FailAppend(next, FaultyStore::Fault::kDiskFull);
  v1::SetQueueRequest request;
  request.mutable_queue()->set_name("q");
  EXPECT_TRUE(absl::IsUnavailable(coordinator_.Do<v1::SetQueueResponse>(request).status()));
  EXPECT_THAT(std::string(HttpGet(http_->port(), "/readyz").status().message()),
              HasSubstr("No space left"));
  EXPECT_EQ(HttpGet(http_->port(), "/healthz").status(), absl::OkStatus());
  EXPECT_EQ(Scrape().Value("nibble_store_healthy"), 0);
}

TEST_F(CoordinatorHttpTest, ScrapeTargetsIncludeTheCoordinator) {
  const auto targets = HttpGet(http_->port(), "/sd");
  ASSERT_EQ(targets.status(), absl::OkStatus());
  EXPECT_THAT(*targets, HasSubstr(absl::StrCat("\"", http_->address(), "\"")));
}

using Json = nlohmann::json;

class TargetsTest : public testing::Test {
 protected:
  void Add(const std::string& name, const std::string& http_address) {
    TestWorker worker(coordinator_, name, 1);
    worker.report.mutable_identity()->set_http_address(http_address);
    ASSERT_EQ(worker.Report(), absl::OkStatus());
  }
  Json Targets(const std::string& self = "127.0.0.1:7701") {
    return Json::parse(coordinator_.controller().Inspect(
        [&](const State& state) { return ScrapeTargets(state, self); }));
  }

  TestCoordinator coordinator_;
};

TEST_F(TargetsTest, TheCoordinatorAndEveryDaemonAreTargets) {
  Add("w1", "10.0.0.1:7702");
  Add("w2", "[::1]:7702");
  EXPECT_EQ(Targets(), Json::parse(R"([
      {"targets": ["127.0.0.1:7701"], "labels": {"role": "coordinator", "cluster": "test"}},
      {"targets": ["10.0.0.1:7702"],
       "labels": {"role": "worker", "worker": "w1", "cluster": "test"}},
      {"targets": ["[::1]:7702"],
       "labels": {"role": "worker", "worker": "w2", "cluster": "test"}}])"));
}

TEST_F(TargetsTest, AnAbsentDaemonStaysATarget) {
  Add("w1", "10.0.0.1:7702");
  coordinator_.clock.Advance(60'000);
  coordinator_.Tick();
  EXPECT_EQ(Targets().size(), 2u);
}

TEST_F(TargetsTest, InvalidAddressesAreLeftOut) {
  Add("w1", "");
  Add("w2", "http://evil/\"}]");
  Add("w3", "10.0.0.3:0");
  Add("w4", "0.0.0.0:7702");
  EXPECT_EQ(Targets("0.0.0.0:7701"), Json::array());
}

TEST_F(CoordinatorHttpTest, RefusedAlertsAreLoggedOnceEachSecond) {
  auto started =
      CoordinatorHttp::Start(controller(), coordinator_.store(), controller().metrics(),
                             {.listen = "127.0.0.1:0",
                              .alerts = [](const std::string&) { return absl::OkStatus(); },
                              .alert_bytes = 100,
                              .alert_token = "the-token"});
  ASSERT_EQ(started.status(), absl::OkStatus());
  httplib::Client client("127.0.0.1", (*started)->port());
  const auto log_of_refusals = [&client](int count) {
    testing::internal::CaptureStderr();
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(client.Post(kAlertsPath, "[]", "application/json")->status, 401);
    }
    return testing::internal::GetCapturedStderr();
  };
  const std::string first = log_of_refusals(5);
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 1) << first;
  EXPECT_THAT(first, HasSubstr("alerts refused: authorization: missing"));
  coordinator_.clock.Advance(1000);
  const std::string second = log_of_refusals(2);
  EXPECT_EQ(std::count(second.begin(), second.end(), '\n'), 1) << second;
  EXPECT_THAT(second, HasSubstr("; and 4 times before"));
}

TEST_F(CoordinatorHttpTest, AlertsAreTakenWithTheirTokenOnlyAndRefusalsSayWhy) {
  httplib::Client off("127.0.0.1", http_->port());
  EXPECT_EQ(off.Post(kAlertsPath, "[]", "application/json")->status, 404) << "not accepted";
  std::vector<std::string> bodies;
  const auto take = [&bodies](const std::string& body) {
    bodies.push_back(body);
    return body == "[]" ? absl::OkStatus() : absl::InvalidArgumentError("body: is not a list");
  };
  auto started = CoordinatorHttp::Start(
      controller(), coordinator_.store(), controller().metrics(),
      {.listen = "127.0.0.1:0", .alerts = take, .alert_bytes = 100, .alert_token = "the-token"});
  ASSERT_EQ(started.status(), absl::OkStatus());
  httplib::Client client("127.0.0.1", (*started)->port());
  for (const char* const wrong :
       {"", "Bearer", "Bearer the-toke", "Bearer the-token2", "the-token"}) {
    const auto refused =
        client.Post(kAlertsPath, {{"Authorization", wrong}}, "[]", "application/json");
    ASSERT_TRUE(refused) << wrong;
    EXPECT_EQ(refused->status, 401) << wrong;
    EXPECT_THAT(refused->body, HasSubstr("authorization: "));
  }
  EXPECT_THAT(bodies, IsEmpty());
  const httplib::Headers right = {{"Authorization", "Bearer the-token"}};
  EXPECT_EQ(client.Post(kAlertsPath, right, "[]", "application/json")->status, 200);
  const auto garbage = client.Post(kAlertsPath, right, "garbage", "application/json");
  EXPECT_EQ(garbage->status, 400);
  EXPECT_EQ(garbage->body, "body: is not a list\n");
  for (const char* const type : {"text/plain", "application/x-www-form-urlencoded", ""}) {
    EXPECT_EQ(client.Post(kAlertsPath, right, "[]", type)->status, 415)
        << "any page in a browser can send " << type;
  }
  EXPECT_EQ(client.Post(kAlertsPath, right, "[]", "Application/JSON; charset=utf-8")->status, 200);
  const auto too_long = client.Post(kAlertsPath, right, std::string(101, 'x'), "application/json");
  EXPECT_EQ(too_long->status, 413);
  EXPECT_EQ(bodies, (std::vector<std::string>{"[]", "garbage", "[]"}));
}

}  // namespace

}  // namespace nibble
