#include "worker/agent/damage_reports.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

v1::CheckpointRef Ref(int64_t step) {
  v1::CheckpointRef ref;
  ref.set_job("train-1");
  ref.set_step(step);
  ref.set_attempt(1);
  return ref;
}
const absl::Status kDamage = absl::DataLossError("shard-00000.sst: chunk 3");

TEST(DamageReportsTest, WhatIsFoundIsReportedUntilItIsAnswered) {
  int changes = 0;
  DamageReports reports([&] { ++changes; });
  reports.Found(Ref(10), 0, "w2", kDamage);
  reports.Found(Ref(10), 0, "w2", kDamage);
  EXPECT_EQ(changes, 1);
  ASSERT_EQ(reports.Report(5).size(), 1u);
  EXPECT_EQ(reports.Report(6).at(0).holder(), "w2");
  EXPECT_EQ(reports.Report(6).at(0).detail(), "shard-00000.sst: chunk 3");
  reports.Answered(4);
  EXPECT_EQ(reports.Report(7).size(), 1u);
  reports.Answered(5);
  EXPECT_TRUE(reports.Report(8).empty());
  // Met once more, it is reported once more: the holder may have got the shard anew.
  reports.Found(Ref(10), 0, "w2", kDamage);
  EXPECT_EQ(reports.Report(9).size(), 1u);
}

TEST(DamageReportsTest, ANewStreamReportsWhatTheOldOneHasNotHadAnAnswerTo) {
  DamageReports reports(nullptr);
  reports.Found(Ref(10), 0, "w2", kDamage);
  EXPECT_EQ(reports.Report(7).size(), 1u);
  EXPECT_EQ(reports.Report(1).size(), 1u);
  reports.Answered(1);
  EXPECT_TRUE(reports.Report(2).empty());
}

TEST(DamageReportsTest, AShardOfWhichACopyWasDamagedIsKnown) {
  DamageReports reports(nullptr);
  reports.Found(Ref(10), 1, "w2", kDamage);
  reports.Answered(100);
  EXPECT_TRUE(reports.AnyOf(Ref(10), 1));
  EXPECT_FALSE(reports.AnyOf(Ref(10), 0));
  EXPECT_FALSE(reports.AnyOf(Ref(20), 1));
}

}  // namespace
}  // namespace nibble
