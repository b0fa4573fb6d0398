#include "recipe/recipe_json.h"

#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Timeline Example() {
  Timeline timeline(Recipe{.preset = "nvfp4",
                           .set = {{"hadamard", "32"}, {"fprop", "bf16"}},
                           .layers = {{"last 4 blocks", {{"all", "mxfp8"}}}, {"mlp", {}}}});
  EXPECT_TRUE(timeline
                  .Append(1, {.set = {{"fprop", "bf16"}}}, 820, 3, "ann \"a\" \n\t\xc3\xa9",
                          1700000000123, "loss gap → 0.5 %")
                  .ok());
  EXPECT_TRUE(timeline.Append(2, {.layers = {{"*", {{"keep", "none"}}}}}, 400, 3, "", -1, "").ok());
  return timeline;
}

TEST(TimelineJson, ReadsBackAsTheSameTimeline) {
  for (const Timeline& timeline : {Timeline(), Timeline(Recipe{}), Example()}) {
    const std::string text = ToJson(timeline);
    const absl::StatusOr<Timeline> back = TimelineFromJson(text);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == timeline);
    EXPECT_EQ(ToJson(*back), text);
  }
}

TEST(TimelineJson, HasTheDocumentedForm) {
  Timeline timeline(Recipe{
      .preset = "nvfp4", .set = {{"fprop", "bf16"}}, .layers = {{"mlp", {{"wgrad", "mxfp8"}}}}});
  EXPECT_EQ(ToJson(timeline),
            R"({"version":1,"revisions":[{"number":1,"first_step":0,"author":"",)"
            R"("time_unix_ms":0,"reason":"","recipe":{"preset":"nvfp4","set":[{"field":"fprop",)"
            R"("value":"bf16"}],"layers":[{"match":"mlp","set":[{"field":"wgrad",)"
            R"("value":"mxfp8"}]}]}}]})");
}

TEST(TimelineJson, ARefusalReadsBackAndAnEmptyOneIsNotWritten) {
  Timeline timeline = Example();
  EXPECT_EQ(ToJson(timeline).find("refused"), std::string::npos);
  ASSERT_TRUE(timeline.Refuse(3, "rank 1: no memory").ok());
  const absl::StatusOr<Timeline> back = TimelineFromJson(ToJson(timeline));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(*back == timeline);
}

TEST(TimelineJson, AFactorOnTheLearningRateReadsBackExactlyAndOneIsNotWritten) {
  Timeline timeline(Recipe{.preset = "nvfp4"});
  EXPECT_THAT(ToJson(timeline), ::testing::Not(::testing::HasSubstr("lr_scale")));
  ASSERT_TRUE(timeline.ScaleLearningRate(1, 0.1 * 0.3).ok());
  const absl::StatusOr<Timeline> read = TimelineFromJson(ToJson(timeline));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, timeline);
  EXPECT_FALSE(TimelineFromJson(R"({"version":1,"revisions":[{"number":1,"first_step":0,)"
                                R"("author":"","time_unix_ms":0,"reason":"","lr_scale":0,)"
                                R"("recipe":{"preset":"bf16","set":[],"layers":[]}}]})")
                   .ok());
}

TEST(TimelineJson, PromotionsReadBackAndAreNotWrittenIfThereAreNone) {
  Timeline timeline = Example();
  EXPECT_EQ(ToJson(timeline).find("promotions"), std::string::npos);
  timeline.Promote({.first_step = 5, .end_step = 9, .layers = "mlp.down", .guard = "spike"});
  const std::string text = ToJson(timeline);
  EXPECT_THAT(text, HasSubstr(R"("promotions":[{"first_step":5,"end_step":9,)"
                              R"("layers":"mlp.down","guard":"spike"}])"));
  const absl::StatusOr<Timeline> back = TimelineFromJson(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(*back == timeline);
}

TEST(TimelineJson, ARecipeOnItsOwnHasTheFormThatATimelineContains) {
  EXPECT_THAT(ToJson(Example()), HasSubstr("\"recipe\":" + ToJson(Example().At(500).recipe)));
}

TEST(TimelineJson, BytesThatAreNotUtf8AreReplaced) {
  Timeline timeline(Recipe{.preset = "a\xff z"});
  const absl::StatusOr<Timeline> back = TimelineFromJson(ToJson(timeline));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->At(0).recipe.preset, "a\xef\xbf\xbd z");
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string JsonRefusal(const std::string& text) {
  const absl::Status status = TimelineFromJson(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(TimelineJson, UnknownMissingAndMistypedFieldsAreRefusedByPath) {
  const std::string good = ToJson(Example());
  EXPECT_THAT(JsonRefusal(Replaced(good, "\"version\":1,", "")),
              HasSubstr("lacks the field 'version'"));
  EXPECT_THAT(JsonRefusal(Replaced(good, "\"version\":1", "\"version\":1,\"extra\":2")),
              AllOf(HasSubstr("unknown field 'extra'"), HasSubstr("version, revisions")));
  EXPECT_THAT(JsonRefusal(Replaced(good, "\"author\":\"\"", "\"writer\":\"\"")),
              AllOf(HasSubstr("revisions[0]"), HasSubstr("'writer'"), HasSubstr("author")));
  EXPECT_THAT(JsonRefusal(Replaced(good, "\"first_step\":400", "\"first_step\":\"400\"")),
              HasSubstr("revisions[1].first_step: is not an integer"));
  EXPECT_THAT(JsonRefusal(Replaced(good, "\"first_step\":400", "\"first_step\":400.5")),
              HasSubstr("revisions[1].first_step"));
  EXPECT_THAT(
      JsonRefusal(Replaced(good, "\"first_step\":400", "\"first_step\":9223372036854775808")),
      HasSubstr("revisions[1].first_step"));
  EXPECT_THAT(JsonRefusal(Replaced(good, "\"preset\":\"nvfp4\"", "\"preset\":null")),
              HasSubstr("revisions[0].recipe.preset: is not a string"));
  EXPECT_THAT(JsonRefusal(Replaced(good, "\"value\":\"bf16\"", "\"value\":16")),
              HasSubstr("revisions[0].recipe.set[1].value"));
  EXPECT_THAT(JsonRefusal(Replaced(good, "\"match\":\"mlp\",\"set\":[]", "\"match\":\"mlp\"")),
              HasSubstr("revisions[0].recipe.layers[1]: lacks the field 'set'"));
  EXPECT_THAT(
      JsonRefusal(Replaced(good, "\"match\":\"mlp\",\"set\":[]", "\"match\":\"mlp\",\"set\":{}")),
      HasSubstr("revisions[0].recipe.layers[1].set: is not an array"));
  EXPECT_THAT(JsonRefusal("[]"), HasSubstr("is not an object"));
  EXPECT_THAT(JsonRefusal("{\"version\":1,\"revisions\":3}"),
              HasSubstr("revisions: is not an array"));
}

TEST(TimelineJson, AnotherVersionIsRefusedBeforeItsFields) {
  EXPECT_THAT(JsonRefusal("{\"version\":2,\"more\":[]}"),
              AllOf(HasSubstr("version: 2"), HasSubstr("allowed: 1")));
  EXPECT_THAT(JsonRefusal("{\"version\":\"1\",\"revisions\":[]}"), HasSubstr("version: \"1\""));
  EXPECT_THAT(JsonRefusal("{\"version\":" + std::string(1 << 20, '[') + std::string(1 << 20, ']') +
                          ",\"revisions\":[]}"),
              HasSubstr("timeline: nested deeper than 16"));
}

TEST(TimelineJson, InvariantsAreChecked) {
  const std::string good = ToJson(Example());
  EXPECT_THAT(JsonRefusal(Replaced(good, "\"number\":3", "\"number\":1")),
              HasSubstr("revisions[1].number: 1"));
  EXPECT_THAT(JsonRefusal(Replaced(good, "\"first_step\":820", "\"first_step\":1")),
              HasSubstr("revisions[2].first_step: 1"));
}

TEST(TimelineJson, ATruncatedTextIsRefusedAtEveryLength) {
  const std::string good = ToJson(Example());
  for (size_t length = 0; length < good.size(); ++length) {
    ASSERT_FALSE(TimelineFromJson(good.substr(0, length)).ok()) << length;
  }
}

TEST(TimelineJson, DamagedBytesAreRefusedOrReadButNeverCrash) {
  const std::string good = ToJson(Example());
  std::mt19937 random(3);
  for (int i = 0; i < 5000; ++i) {
    std::string bad = good;
    for (unsigned edits = 1 + random() % 3; edits > 0; --edits) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    const absl::StatusOr<Timeline> back = TimelineFromJson(bad);
    if (back.ok()) {
      ASSERT_TRUE(TimelineFromJson(ToJson(*back)).ok());
    }
  }
}

}  // namespace
}  // namespace nibble
