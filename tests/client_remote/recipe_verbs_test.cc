// `nibble recipe …` of jobs, beside its verbs without a cluster.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client_remote/remote_cluster.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RecipeVerbsTest : public RemoteClusterTest {
 protected:
  const std::string job_ = cluster_.Submit();
};

TEST_F(RecipeVerbsTest, ARecipeIsSetReadAndItsHistoryListed) {
  const Outcome set =
      Nibble({"recipe", "set", job_, "fprop=bf16", "--at", "lr-decay", "--reason", "to recover"});
  EXPECT_EQ(set.exit_code, 0) << set.err;
  EXPECT_THAT(set.out, AllOf(HasSubstr("revision 2 of train-1 from step 800\n"),
                             HasSubstr("  fprop: nvfp4 → bf16 in "),
                             HasSubstr("\ntrain-1 is queued at 0/1000 (0%)")));
  const nlohmann::json first = Json({"recipe", "get", job_});
  EXPECT_EQ(first["revision"]["number"], 1);
  EXPECT_EQ(first["latest_revision"], 2);
  const Outcome second = Nibble({"recipe", "get", job_, "--revision", "2", "--table"});
  EXPECT_THAT(second.out,
              AllOf(HasSubstr("revision      2; the latest is 2"), HasSubstr("fprop=bf16"),
                    HasSubstr("reason        to recover"), HasSubstr("wgrad.gradient")));
  const Outcome history = Nibble({"recipe", "history", job_});
  EXPECT_THAT(history.out, AllOf(HasSubstr("REVISION"), HasSubstr("800"), HasSubstr("to recover")));
  const nlohmann::json all = Json({"recipe", "history", job_});
  ASSERT_EQ(all["revisions"].size(), 2u);
  EXPECT_EQ(all["revisions"][1]["first_step"], 800);
}

TEST_F(RecipeVerbsTest, LayersAreSetBesideFields) {
  const nlohmann::json set = Json({"recipe", "set", job_, "wgrad=bf16", "--layer",
                                   "last 2 blocks:fprop=bf16,dgrad=bf16", "--at", "step:100"});
  EXPECT_EQ(set["revision"], 2);
  EXPECT_EQ(set["first_step"], 100);
  const nlohmann::json got = Json({"recipe", "get", job_, "--revision", "2"});
  EXPECT_EQ(got["revision"]["recipe"]["layers"][0]["match"], "last 2 blocks");
}

TEST_F(RecipeVerbsTest, ADryRunChangesNothing) {
  const Outcome dry = Nibble({"recipe", "set", job_, "fprop=bf16", "--dry-run"});
  EXPECT_EQ(dry.exit_code, 0);
  EXPECT_THAT(dry.out, HasSubstr("revision 2 of train-1"));
  EXPECT_THAT(dry.err, HasSubstr("nothing is changed"));
  EXPECT_EQ(Json({"recipe", "get", job_})["latest_revision"], 1);
}

TEST_F(RecipeVerbsTest, WhatIsWrongNamesItsField) {
  const auto err = [this](std::vector<std::string> more) {
    more.insert(more.begin(), {"recipe", "set", job_});
    const Outcome outcome = Nibble(more);
    EXPECT_EQ(outcome.exit_code, 1);
    return outcome.err;
  };
  EXPECT_THAT(err({"fpropp=bf16"}), HasSubstr("fpropp"));
  EXPECT_THAT(err({"fprop"}), HasSubstr("set: "));
  EXPECT_THAT(err({}), HasSubstr("set: nothing to change"));
  EXPECT_THAT(err({"--layer", "fprop"}), HasSubstr("layer: 'fprop'"));
  EXPECT_THAT(err({"fprop=bf16", "--at", "step:5000"}), HasSubstr("at: "));
  EXPECT_THAT(err({"fprop=bf16", "--expected-revision", "9"}), HasSubstr("expected_revision"));
  EXPECT_EQ(Nibble({"recipe", "set", "none", "fprop=bf16"}).exit_code, 102);
  EXPECT_EQ(Nibble({"recipe", "get", job_, "--revision", "9"}).exit_code, 102);
}

TEST_F(RecipeVerbsTest, RollbackTakesAnEarlierRecipeAgain) {
  ASSERT_EQ(Nibble({"recipe", "set", job_, "fprop=bf16", "--at", "step:10"}).exit_code, 0);
  const Outcome back =
      Nibble({"recipe", "rollback", job_, "1", "--at", "step:20", "--reason", "it was better"});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_THAT(back.out, AllOf(HasSubstr("revision 3 of train-1 from step 20"),
                              HasSubstr("the recipe of revision 1")));
  EXPECT_EQ(Nibble({"recipe", "rollback", job_, "7"}).exit_code, 102);
  EXPECT_EQ(Nibble({"recipe", "rollback", job_, "1", "--expected-revision", "2"}).exit_code, 1);
  EXPECT_EQ(Json({"recipe", "rollback", job_, "2", "--dry-run"})["revision"], 4);
}

TEST_F(RecipeVerbsTest, DiffIsOfAJobsRevisionsOrOfPresetsForAModel) {
  ASSERT_EQ(Nibble({"recipe", "set", job_, "fprop=bf16", "--at", "step:10"}).exit_code, 0);
  ASSERT_EQ(Nibble({"recipe", "set", job_, "wgrad=bf16", "--at", "step:20"}).exit_code, 0);
  const Outcome all = Nibble({"recipe", "diff", job_});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_THAT(all.out, AllOf(HasSubstr("fprop: "), HasSubstr("wgrad: ")));
  const Outcome some = Nibble({"recipe", "diff", job_, "2", "r3"});
  EXPECT_THAT(some.out, AllOf(Not(HasSubstr("fprop: ")), HasSubstr("wgrad: ")));
  EXPECT_EQ(Json({"recipe", "diff", job_, "1", "2"})["differences"][0]["to"], "bf16");
  const Outcome preset = Nibble({"recipe", "diff", job_, "bf16"});
  EXPECT_EQ(preset.exit_code, 1);
  EXPECT_THAT(preset.err, HasSubstr("from_revision: 'bf16'"));
  const Outcome local = Nibble({"recipe", "diff", "nvfp4", "bf16", "--model", "tiny-hybrid"});
  EXPECT_EQ(local.exit_code, 0);
  EXPECT_THAT(local.out, HasSubstr("→ bf16"));
  EXPECT_EQ(Nibble({"recipe", "diff", "nvfp4", "--model", "tiny-hybrid"}).exit_code, 2);
  EXPECT_EQ(Nibble({"recipe", "diff", job_, "--set", "fprop=bf16"}).exit_code, 2);
}

TEST_F(RecipeVerbsTest, CostIsOfAJobOrOfAPresetForAModel) {
  const Outcome cost = Nibble({"recipe", "cost", job_});
  EXPECT_EQ(cost.exit_code, 0) << cost.err;
  EXPECT_THAT(cost.out, AllOf(HasSubstr("IN 16 BIT"), HasSubstr("total")));
  const double now = Json({"recipe", "cost", job_})["cost"]["total_ratio"];
  const double changed =
      Json({"recipe", "cost", job_, "--revision", "1", "--set", "all=bf16"})["cost"]["total_ratio"];
  EXPECT_LT(now, changed);
  EXPECT_NEAR(changed, 1, 1e-9);
  EXPECT_THAT(Nibble({"recipe", "cost", "nvfp4", "--model", "tiny-hybrid"}).out,
              HasSubstr("16 bit"));
  EXPECT_EQ(Nibble({"recipe", "cost", job_, "--sequence", "128"}).exit_code, 2);
}

TEST_F(RecipeVerbsTest, PresetsAreTheCoordinatorsWhereItIsNamed) {
  const nlohmann::json here = Json({"recipe", "presets"});
  const nlohmann::json there = Json({"recipe", "presets", "--server", cluster_.address()});
  EXPECT_EQ(here, there["presets"]);
  EXPECT_THAT(Nibble({"recipe", "presets", "--server", cluster_.address()}).out,
              HasSubstr("nvfp4 "));
}

}  // namespace
}  // namespace nibble
