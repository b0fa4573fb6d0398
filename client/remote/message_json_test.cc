#include "client/remote/message_json.h"

#include <limits>

#include "client/local/json_text.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/job_requests.pb.h"

namespace nibble {
namespace {

TEST(MessageJsonTest, EveryFieldIsThereUnderItsNameAndNumbersAreNumbers) {
  v1::Job job;
  job.set_id("train-7");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_shape()->set_parameters((int64_t{1} << 53) + 1);
  job.add_blames()->set_worker("w1");
  job.mutable_scheduling()->add_allowed_ranks(2);
  const auto json = JsonOf(job);
  EXPECT_EQ(json["id"], "train-7");
  EXPECT_EQ(json["state"], "JOB_STATE_RUNNING");
  EXPECT_EQ(json["shape"]["parameters"], (int64_t{1} << 53) + 1);
  EXPECT_EQ(json["blames"][0]["worker"], "w1");
  EXPECT_EQ(json["blames"][0]["excluded"], false);
  EXPECT_EQ(json["scheduling"]["allowed_ranks"], nlohmann::ordered_json::parse("[2]"));
  EXPECT_EQ(json["recent_attempts"], nlohmann::ordered_json::array());
  EXPECT_EQ(json["checkpoint_step"], 0);
  EXPECT_FALSE(json.contains("attempt"));
}

TEST(MessageJsonTest, OfAOneofOnlyWhatIsSetIsThere) {
  v1::WatchJobsResponse told;
  told.set_caught_up(true);
  EXPECT_EQ(JsonLine(JsonOf(told)), "{\"resume_token\":\"\",\"caught_up\":true}\n");
}

TEST(MessageJsonTest, WhatJsonHasNoNumberForIsAText) {
  v1::StepSample sample;
  sample.set_loss(std::numeric_limits<double>::quiet_NaN());
  sample.set_gradient_norm(std::numeric_limits<double>::infinity());
  EXPECT_EQ(JsonOf(sample)["loss"], "NaN");
  EXPECT_EQ(JsonOf(sample)["gradient_norm"], "Infinity");
}

}  // namespace
}  // namespace nibble
