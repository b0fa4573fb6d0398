// The plan on paper (plan/rank_memory.h), by which people choose machines, against the layout that
// Model makes.
#include "plan/rank_memory.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "recipe/presets.h"
#include "worker/trainer/model/model.h"
#include "worker/trainer/model/model_testing.h"

namespace nibble {
namespace {

constexpr int64_t kTokensOfSequence = 64;

void ExpectTheSameLayout(const ModelSpec& spec, int& compared) {
  TestDevice device(1);
  const Outline outline = MakeOutline(spec).value();
  const std::unique_ptr<Parameters> parameters =
      Parameters::Create(device.device(), outline, /*seed=*/1).value();
  for (const Preset& preset : AllPresets()) {
    const absl::StatusOr<ResolvedRecipe> recipe = Resolve({.preset = preset.name}, outline, 0);
    if (!recipe.ok()) continue;  // blocks that do not divide the model
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(absl::StrCat(spec.name, ", ", preset.name, recompute ? ", recomputed" : ""));
      const absl::StatusOr<MemoryPlan> laid_out =
          Model::Measure(device.device(), *parameters, *recipe,
                         {.sequences = 2, .length = kTokensOfSequence, .recompute = recompute});
      ASSERT_TRUE(laid_out.ok()) << laid_out.status();
      // The CPU wants the operands that a card without native products wants.
      const absl::StatusOr<ModelMemory> planned =
          LayOutModel(outline, *recipe, {.native = false},
                      {.sequences = 2, .length = kTokensOfSequence, .recompute = recompute},
                      device.backend->chunk_bytes());
      ASSERT_TRUE(planned.ok()) << planned.status();
      EXPECT_EQ(planned->working_weights, static_cast<int64_t>(laid_out->working_weights));
      EXPECT_EQ(planned->activations, static_cast<int64_t>(laid_out->activations));
      EXPECT_EQ(planned->scratch, static_cast<int64_t>(laid_out->scratch));
      ++compared;
    }
  }
}

TEST(RankMemoryOfModelTest, ThePlanOnPaperIsTheLayoutOfTheModelToTheByte) {
  int compared = 0;
  for (const char* name : {"tiny-hybrid", "tiny-transformer", "tiny-llama"}) {
    ExpectTheSameLayout(ModelPreset(name).value(), compared);
  }
  ExpectTheSameLayout(LlamaSpec(), compared);
  ExpectTheSameLayout(Gpt2Spec(), compared);
  EXPECT_GE(compared, 5 * 2 * 4);
}

}  // namespace
}  // namespace nibble
