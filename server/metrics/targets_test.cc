#include "server/metrics/targets.h"

#include <nlohmann/json.hpp>
#include <string>

#include "gtest/gtest.h"
#include "server/controller/testing.h"

namespace nibble {
namespace {

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

TEST_F(TargetsTest, TheCoordinatorAndEveryDaemonIsATarget) {
  Add("w1", "10.0.0.1:7702");
  Add("w2", "[::1]:7702");
  EXPECT_EQ(Targets(), Json::parse(R"([
      {"targets": ["127.0.0.1:7701"], "labels": {"role": "coordinator", "cluster": "test"}},
      {"targets": ["10.0.0.1:7702"],
       "labels": {"role": "worker", "worker": "w1", "cluster": "test"}},
      {"targets": ["[::1]:7702"],
       "labels": {"role": "worker", "worker": "w2", "cluster": "test"}}])"));
}

TEST_F(TargetsTest, ADaemonThatIsAwayStaysATarget) {
  Add("w1", "10.0.0.1:7702");
  coordinator_.clock.Advance(60'000);
  coordinator_.Tick();
  EXPECT_EQ(Targets().size(), 2u);
}

TEST_F(TargetsTest, WhatIsNoAddressIsLeftOut) {
  Add("w1", "");
  Add("w2", "http://evil/\"}]");
  Add("w3", "10.0.0.3:0");
  Add("w4", "0.0.0.0:7702");
  EXPECT_EQ(Targets("0.0.0.0:7701"), Json::array());
}

}  // namespace
}  // namespace nibble
