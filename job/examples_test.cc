// Every example is a valid spec. Bazel runs this in a folder that contains `examples`.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "job/job_spec.h"
#include "job/schedule.h"
#include "model/outline.h"

namespace nibble {
namespace {

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

JobSpec Example(const std::string& name) {
  const absl::StatusOr<JobSpec> spec = ParseJobSpec(ReadFile("examples/" + name + ".yaml"));
  EXPECT_TRUE(spec.ok()) << name << ": " << spec.status();
  return spec.ok() ? *spec : JobSpec();
}

TEST(ExamplesTest, EveryExampleIsValidAndNamedAfterItsFile) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("examples")) {
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem());
  }
  EXPECT_GE(names.size(), 4u);
  for (const std::string& name : names) EXPECT_EQ(Example(name).name, name);
}

TEST(ExamplesTest, ThePaperRunTrainsOnTenTrillionTokensAndSwitchesAt82Percent) {
  const JobSpec spec = Example("paper-12b");
  EXPECT_NEAR(static_cast<double>(TotalTokens(spec)), 10e12, 1e7);
  const Timeline timeline = MakeTimeline(spec);
  ASSERT_EQ(timeline.revisions().size(), 2u);
  EXPECT_NEAR(static_cast<double>(timeline.revisions()[1].first_step),
              0.82 * static_cast<double>(spec.training.steps), 1.0);
  EXPECT_EQ(LearningRate(spec.optimizer, spec.training.steps, 1000), 4.5e-4);
  EXPECT_EQ(LearningRate(spec.optimizer, spec.training.steps, spec.training.steps - 1), 4.5e-6);
}

TEST(ExamplesTest, TheLlamaRunEndsIn16Bits) {
  const JobSpec spec = Example("zhou-llama-125m");
  EXPECT_NEAR(static_cast<double>(TotalTokens(spec)), 5e9, 1e6);
  const absl::StatusOr<Outline> outline = MakeOutline(spec.model);
  ASSERT_TRUE(outline.ok());
  const Timeline timeline = MakeTimeline(spec);
  const auto last = Resolve(timeline.At(spec.training.steps - 1).recipe, *outline, 0);
  ASSERT_TRUE(last.ok());
  for (const LayerRecipe& layer : last->layers) EXPECT_EQ(layer, LayerRecipe());
  const auto first = Resolve(timeline.At(0).recipe, *outline, 0);
  ASSERT_TRUE(first.ok());
  EXPECT_NE(first->layers[0], LayerRecipe());
}

TEST(ExamplesTest, TheQuickStartIsShort) {
  const JobSpec spec = Example("quickstart");
  EXPECT_LE(TotalTokens(spec), 2'000'000);
  EXPECT_EQ(spec.resources.ranks, 1);
}

}  // namespace
}  // namespace nibble
