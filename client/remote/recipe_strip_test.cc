#include "client/remote/recipe_strip.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/model_spec.h"

namespace nibble {
namespace {

v1::RecipeRevision Revision(int64_t number, int64_t first_step, const std::string& fprop = "") {
  v1::RecipeRevision revision;
  revision.set_number(number);
  revision.set_first_step(first_step);
  revision.mutable_recipe()->set_preset("nvfp4-base");
  if (fprop.empty()) return revision;
  v1::FieldSetting& setting = *revision.mutable_recipe()->add_set();
  setting.set_field("fprop");
  setting.set_value(fprop);
  return revision;
}

std::string Strip(const std::vector<v1::RecipeRevision>& revisions, size_t columns,
                  bool utf8 = true) {
  const PlotArea area = {.columns = columns, .x_to = 100, .utf8 = utf8};
  return RecipeStrip(EffectiveRevisions(revisions),
                     {{1, {4, 4, 4}}, {2, {16, 4, 4}}, {3, {16, 16, 16}}}, area, 1)
      .Text(false);
}

TEST(RecipeStripTest, SegmentsAreToScaleAndNamed) {
  EXPECT_EQ(Strip({Revision(1, 0), Revision(2, 50, "bf16")}, 50),
            "timeline  ░ r1 nvfp4-base ░░░░░░░░░│▓ r2 fprop=bf16 ▓▓▓▓▓▓▓▓");
  EXPECT_EQ(Strip({Revision(1, 0), Revision(2, 50, "bf16")}, 50, false),
            "timeline  . r1 nvfp4-base .........|= r2 fprop=bf16 ========");
}

TEST(RecipeStripTest, ANarrowSegmentHasItsNumberOrOnlyItsShade) {
  EXPECT_EQ(Strip({Revision(1, 0), Revision(2, 70, "bf16"), Revision(3, 90)}, 20),
            "timeline  ░ r1 ░░░░░░░░░│▓▓▓│█");
}

TEST(RecipeStripTest, ARevisionAfterTheShownStepsIsLeftOut) {
  EXPECT_EQ(Strip({Revision(1, 0), Revision(2, 100, "bf16")}, 10), "timeline  ░ r1 ░░░░░");
}

TEST(EffectiveRevisionsTest, RefusedAndSupersededRevisionsNeverTakeEffect) {
  v1::RecipeRevision refused = Revision(2, 40);
  refused.set_refused("no kernel");
  const auto effective = EffectiveRevisions(
      {Revision(1, 0), refused, Revision(3, 80), Revision(4, 60), Revision(5, 90)});
  ASSERT_EQ(effective.size(), 3u);
  EXPECT_EQ(effective[1].number(), 4);
  EXPECT_EQ(effective[2].number(), 5);
}

TEST(RecipeChangeTextTest, OnlyWhatWasAddedIsNamed) {
  const v1::Recipe plain = Revision(1, 0).recipe();
  v1::Recipe changed = Revision(2, 0, "bf16").recipe();
  EXPECT_EQ(RecipeChangeText(plain, changed), "fprop=bf16");
  EXPECT_EQ(RecipeChangeText(changed, plain), "nvfp4-base");
  v1::Recipe other = plain;
  other.set_preset("bf16");
  EXPECT_EQ(RecipeChangeText(plain, other), "bf16");
}

TEST(GemmBitsTest, EachGemmHasTheBitsOfMostOfItsLayers) {
  const absl::StatusOr<ModelSpec> spec = ModelPreset("tiny-hybrid");
  ASSERT_EQ(spec.status(), absl::OkStatus());
  const absl::StatusOr<Outline> outline = MakeOutline(*spec);
  ASSERT_EQ(outline.status(), absl::OkStatus());
  EXPECT_EQ(BitsOf(Revision(1, 0).recipe(), *outline), (GemmBits{4, 4, 4}));
  EXPECT_EQ(BitsOf(Revision(1, 0, "bf16").recipe(), *outline), (GemmBits{16, 4, 4}));
  EXPECT_EQ(BitsOf(Revision(1, 0, "nonsense").recipe(), *outline), GemmBits());
  EXPECT_EQ(BitsText({4, 4, 4}), "4 bits");
  EXPECT_EQ(BitsText({16, 4, 4}), "fprop 16, dgrad 4, wgrad 4 bits");
  EXPECT_EQ(BitsText({}), "");
}

}  // namespace
}  // namespace nibble
