#include "client/remote/scheduling_flags.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SchedulingFlagsTest, SlotsAllowTheNumbersOfRanksThatDivideTheBatch) {
  SchedulingFlags flags;
  flags.min_slots = 2;
  flags.max_slots = 9;
  EXPECT_THAT(flags.Over({}, 16, 0)->allowed_ranks(), ElementsAre(2, 4, 8));
  EXPECT_THAT(flags.Over({}, 16, 4)->allowed_ranks(), ElementsAre(2, 4));
  flags.max_slots.reset();
  EXPECT_THAT(flags.Over({}, 12, 0)->allowed_ranks(), ElementsAre(2, 3, 4, 6, 12));
  flags.min_slots = 7;
  flags.max_slots = 7;
  EXPECT_THAT(flags.Over({}, 16, 0).status().message(),
              HasSubstr("--min-slots, --max-slots: no number of ranks from 7 to 7"));
}

TEST(SchedulingFlagsTest, FlagsBecomeSettingsOfTheSpec) {
  SchedulingFlags flags;
  EXPECT_THAT(*flags.Settings(), IsEmpty());
  flags.queue = "nights";
  flags.priority = 0;
  flags.required = {"rack=a", "zone=1"};
  flags.min_slots = 2;
  EXPECT_THAT(*flags.Settings(),
              ElementsAre("scheduling.queue=\"nights\"", "scheduling.priority=0",
                          "scheduling.require={\"rack\": \"a\", \"zone\": \"1\"}",
                          "resources.allowed_ranks=[]", "resources.min_ranks=2",
                          "resources.max_ranks=65536"));
  flags = {};
  flags.ranks = {4, 2};
  EXPECT_THAT(*flags.Settings(), ElementsAre("resources.allowed_ranks=[2, 4]",
                                             "resources.min_ranks=0", "resources.max_ranks=0"));
  RestartFlags restarts;
  restarts.max_restarts = 0;
  restarts.backoff = "500ms";
  restarts.max_backoff = "2m";
  EXPECT_THAT(*restarts.Settings(),
              ElementsAre("restarts.max_without_progress=0", "restarts.backoff=0.5",
                          "restarts.max_backoff=120"));
  // No millisecond is lost.
  restarts = {.backoff = "1234567ms", .max_backoff = "8760h"};
  EXPECT_THAT(*restarts.Settings(),
              ElementsAre("restarts.backoff=1234.567", "restarts.max_backoff=31536000"));
}

TEST(SchedulingFlagsTest, UnsetFlagsKeepTheirValues) {
  v1::JobScheduling base;
  base.set_queue("nights");
  base.set_priority(3);
  base.add_required_labels()->set_key("rack");
  SchedulingFlags flags;
  EXPECT_FALSE(flags.given());
  flags.priority = 0;
  flags.preferred = {"zone=a"};
  EXPECT_TRUE(flags.given());
  const auto scheduling = flags.Over(base, 16, 0);
  EXPECT_EQ(scheduling->queue(), "nights");
  EXPECT_EQ(scheduling->priority(), 0);
  EXPECT_EQ(scheduling->required_labels(0).key(), "rack");
  EXPECT_EQ(scheduling->preferred_labels(0).value(), "a");
  flags.required = {"rack"};
  EXPECT_THAT(flags.Over(base, 16, 0).status().message(),
              HasSubstr("--require: 'rack' is not KEY=VALUE"));
}

TEST(RestartFlagsTest, ABackoffAboveTheMaximumRaisesTheMaximum) {
  v1::RestartPolicy base;
  base.set_max_without_progress(3);
  base.set_initial_backoff_ms(5'000);
  base.set_max_backoff_ms(300'000);
  RestartFlags flags;
  flags.backoff = "10m";
  EXPECT_EQ(flags.Over(base)->max_backoff_ms(), 600'000);
  EXPECT_EQ(flags.Over(base)->max_without_progress(), 3);
  flags.max_backoff = "20m";
  flags.max_restarts = 0;
  const auto policy = flags.Over(base);
  EXPECT_EQ(policy->initial_backoff_ms(), 600'000);
  EXPECT_EQ(policy->max_backoff_ms(), 1'200'000);
  EXPECT_EQ(policy->max_without_progress(), 0);
  flags.backoff = "soon";
  EXPECT_THAT(flags.Over({}).status().message(), HasSubstr("'soon'; allowed: "));
}

}  // namespace
}  // namespace nibble
