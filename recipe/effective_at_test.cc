#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "recipe/timeline.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ScheduleFacts kFacts = {
    .steps = 1000, .tokens_per_step = 4096, .decay_first_step = 800, .next_step = 123};

int64_t StepOf(const std::string& text, const ScheduleFacts& facts = kFacts) {
  const absl::StatusOr<EffectiveAt> at = ParseEffectiveAt(text);
  EXPECT_TRUE(at.ok()) << at.status();
  if (!at.ok()) return -1;
  const absl::StatusOr<int64_t> step = ResolveStep(*at, facts);
  EXPECT_TRUE(step.ok()) << text << ": " << step.status();
  return step.value_or(-1);
}

std::string EffectiveAtRefusal(const std::string& text, const ScheduleFacts& facts = kFacts) {
  const absl::StatusOr<EffectiveAt> at = ParseEffectiveAt(text);
  const absl::Status status = at.ok() ? ResolveStep(*at, facts).status() : at.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(EffectiveAt, EveryKindOfTimeResolvesToAStep) {
  EXPECT_EQ(StepOf("step:0"), 0);
  EXPECT_EQ(StepOf("step:1000"), 1000);
  EXPECT_EQ(StepOf("now"), 123);
  EXPECT_EQ(StepOf("lr-decay"), 800);
  EXPECT_EQ(StepOf("fraction:0"), 0);
  EXPECT_EQ(StepOf("fraction:0.82"), 820);
  EXPECT_EQ(StepOf("82%"), 820);
  EXPECT_EQ(StepOf("fraction:82%"), 820);
  EXPECT_EQ(StepOf("100%"), 1000);
}

TEST(EffectiveAt, TokensResolveToTheFirstStepAfterThem) {
  EXPECT_EQ(StepOf("tokens:0"), 0);
  EXPECT_EQ(StepOf("tokens:1"), 1);
  EXPECT_EQ(StepOf("tokens:4096"), 1);
  EXPECT_EQ(StepOf("tokens:4097"), 2);
  EXPECT_EQ(StepOf("tokens:4096000"), 1000);
  EXPECT_THAT(EffectiveAtRefusal("tokens:4096001"),
              AllOf(HasSubstr("step 1001"), HasSubstr("[0, 1000]")));
  EXPECT_THAT(EffectiveAtRefusal("tokens:9223372036854775807"), HasSubstr("[0, 1000]"));
}

TEST(EffectiveAt, FractionsOfAnyLengthOfRunAreExact) {
  // p per mille of 1000·n steps is p·n, however the decimal fraction is stored.
  for (int64_t n : {1, 7, 1000, 1234567}) {
    ScheduleFacts facts = kFacts;
    facts.steps = 1000 * n;
    for (int64_t p = 0; p <= 1000; ++p) {
      const std::string digits = std::to_string(1000 + p).substr(1);
      const std::string text = p == 1000 ? "fraction:1" : "fraction:0." + digits;
      ASSERT_EQ(StepOf(text, facts), p * n) << text << " of " << facts.steps;
    }
  }
  EXPECT_EQ(StepOf("fraction:0.8201"), 821);  // the first step that is not before it
}

TEST(EffectiveAt, TextsReadBackAsTheSameValue) {
  for (const char* text : {"step:0", "step:1200", "tokens:5000000", "fraction:0.82", "fraction:0",
                           "fraction:1", "fraction:0.1234567890123", "lr-decay", "now"}) {
    const absl::StatusOr<EffectiveAt> at = ParseEffectiveAt(text);
    ASSERT_TRUE(at.ok()) << at.status();
    EXPECT_EQ(ToString(*at), text);
  }
  EXPECT_EQ(ToString(*ParseEffectiveAt("82%")), "fraction:0.82");
  EXPECT_EQ(*ParseEffectiveAt("82%"), *ParseEffectiveAt("fraction:0.82"));
}

TEST(EffectiveAt, InvalidTimesAreRefusedWithTheAllowedForms) {
  for (const char* text :
       {"", "soon", "step", "step:", "step:-1", "step:1.5", "step:99999999999999999999", "tokens:x",
        "fraction:", "fraction:1.01", "fraction:-0.1", "fraction:nan", "101%", "%", "-1%", "0.82",
        "step: 5", "lr-decay:3", "Now"}) {
    EXPECT_THAT(EffectiveAtRefusal(text), AllOf(HasSubstr("'" + std::string(text) + "'"),
                                                HasSubstr("allowed: step:N, tokens:N")));
  }
}

TEST(EffectiveAt, StepsOutsideTheRunAreRefusedWithTheBound) {
  EXPECT_THAT(EffectiveAtRefusal("step:1001"),
              AllOf(HasSubstr("step:1001"), HasSubstr("[0, 1000]")));
  ScheduleFacts late = kFacts;
  late.next_step = 1001;
  EXPECT_THAT(EffectiveAtRefusal("now", late), HasSubstr("[0, 1000]"));
  EffectiveAt at = {.kind = EffectiveAt::Kind::kFraction, .fraction = 1.5};
  EXPECT_THAT(std::string(ResolveStep(at, kFacts).status().message()),
              AllOf(HasSubstr("fraction:1.5"), HasSubstr("[0, 1]")));
  at.fraction = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(ResolveStep(at, kFacts).ok());
  at = {.kind = EffectiveAt::Kind::kStep, .count = -5};
  EXPECT_THAT(std::string(ResolveStep(at, kFacts).status().message()), HasSubstr("-5"));
}

TEST(EffectiveAt, LrDecayWithoutADecayIsRefused) {
  ScheduleFacts constant = kFacts;
  constant.decay_first_step = constant.steps;
  EXPECT_THAT(EffectiveAtRefusal("lr-decay", constant),
              HasSubstr("never decays in the 1000 steps"));
}

TEST(EffectiveAt, TokensWithoutTokensPerStepAreRefused) {
  ScheduleFacts facts = kFacts;
  facts.tokens_per_step = 0;
  EXPECT_THAT(EffectiveAtRefusal("tokens:5", facts), HasSubstr("0 tokens per step"));
}

}  // namespace
}  // namespace nibble
