#include "job/overrides.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_spec.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kSpec[] = R"(
name: over   # a comment
model: tiny-hybrid
recipe: nvfp4
data: {train: [corpus.txt, {path: b.txt, weight: 3}]}
training:
  steps: 1000
)";

JobSpec SpecWith(const std::vector<std::string>& settings) {
  const absl::StatusOr<std::string> yaml = OverrideFields(kSpec, settings);
  EXPECT_TRUE(yaml.ok()) << yaml.status();
  if (!yaml.ok()) return JobSpec();
  const absl::StatusOr<JobSpec> spec = ParseJobSpec(*yaml);
  EXPECT_TRUE(spec.ok()) << *yaml << spec.status();
  return spec.ok() ? *spec : JobSpec();
}

std::string OverrideError(const std::vector<std::string>& settings) {
  const absl::Status status = ParseJobSpec(kSpec, settings).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(OverridesTest, WithoutSettingsTheTextIsUnchanged) {
  EXPECT_EQ(*OverrideFields(kSpec, {}), kSpec);
}

TEST(OverridesTest, AFieldIsReplacedOrAdded) {
  const JobSpec spec = SpecWith({"training.steps=200", "optimizer.lr=2e-3", "name=other"});
  EXPECT_EQ(spec.training.steps, 200);
  EXPECT_EQ(spec.optimizer.lr, 2e-3);
  EXPECT_EQ(spec.name, "other");
  EXPECT_EQ(spec.data.train.size(), 2u);
}

TEST(OverridesTest, ValuesHaveTheSameTypesAsInAFile) {
  const JobSpec spec = SpecWith({"data.train=[x.txt, {path: y, weight: 2}]",
                                 "data.reset_at_documents=false", "guards={spike: skip}"});
  ASSERT_EQ(spec.data.train.size(), 2u);
  EXPECT_EQ(spec.data.train[1].weight, 2);
  EXPECT_FALSE(spec.data.reset_at_documents);
  EXPECT_EQ(spec.guards.spike, SpikePolicy::kSkip);
  EXPECT_THAT(OverrideError({"training.steps='200'"}),
              HasSubstr("the text '200' is not a whole number"));
  EXPECT_THAT(OverrideError({"model.pattern=*-"}),
              HasSubstr("put a text that begins with * in quotes"));
}

TEST(OverridesTest, EntriesOfListsAreAddressedByIndex) {
  const JobSpec spec = SpecWith({"data.train[1].weight=7", "data.train[0].weight=2"});
  ASSERT_EQ(spec.data.train.size(), 2u);
  EXPECT_EQ(spec.data.train[1].weight, 7);
  EXPECT_EQ(spec.data.train[0], (TrainingSource{"corpus.txt", 2}));
  EXPECT_EQ(OverrideError({"data.train[2].weight=7"}),
            "data.train[2].weight: data.train has 2 entries; the first is [0]");
  EXPECT_THAT(OverrideError({"data.train[x]=7"}),
              HasSubstr("'[' must be followed by an entry's number"));
}

TEST(OverridesTest, RecipeFieldsAreNamedInFullAndThePresetIsKept) {
  const JobSpec spec = SpecWith({"recipe.set.wgrad.rounding=nearest", "model.chunk=32"});
  EXPECT_EQ(spec.recipe.preset, "nvfp4");
  ASSERT_EQ(spec.recipe.set.size(), 1u);
  EXPECT_EQ(spec.recipe.set[0], (FieldSetting{"wgrad.rounding", "nearest"}));
  EXPECT_EQ(spec.model.name, "tiny-hybrid");
  EXPECT_EQ(spec.model.chunk, 32);
}

TEST(OverridesTest, AMistypedPathIsReportedWithTheNearestName) {
  EXPECT_THAT(OverrideError({"training.stepz=5"}), HasSubstr("did you mean steps?"));
  EXPECT_THAT(OverrideError({"name.steps=5"}), HasSubstr("name is 'over', not a map"));
}

TEST(OverridesTest, AProblemHasItsLineInTheFileUnlessASettingMadeIt) {
  const std::string wrong = absl::StrCat(kSpec, "optimizer:\n  # too high\n  lr: 11\n");
  const auto problem = [&wrong](const std::vector<std::string>& settings) {
    return std::string(ParseJobSpec(wrong, settings).status().message());
  };
  const std::string of_file = "line 10: optimizer.lr: 11 is not in [1.0e-12, 10]";
  EXPECT_EQ(problem({}), of_file);
  EXPECT_EQ(problem({"model.vocab=300", "training.batch=2"}), of_file);
  EXPECT_EQ(problem({"optimizer.lr=12"}), "optimizer.lr: 12 is not in [1.0e-12, 10]");
  EXPECT_THAT(problem({"optimizer={lr: 1, bets: 2}"}), StartsWith("optimizer.bets: unknown field"));
  EXPECT_THAT(problem({"training.nope=1", "optimizer.lr=1"}),
              StartsWith("training.nope: unknown field"));
}

TEST(OverridesTest, OverlappingSettingsAreRefused) {
  EXPECT_EQ(OverrideError({"training.steps=5", "training.steps=6"}),
            "training.steps: an earlier setting sets training.steps");
  EXPECT_EQ(OverrideError({"training.steps=5", "training={steps: 6}"}),
            "training: an earlier setting sets training.steps");
}

TEST(OverridesTest, AMalformedSettingIsReportedWithAnExample) {
  EXPECT_EQ(OverrideError({"steps"}), "'steps' is not PATH=VALUE, such as training.steps=200");
  EXPECT_THAT(OverrideError({"=5"}), HasSubstr("is not PATH=VALUE"));
  EXPECT_THAT(OverrideError({"training..steps=5"}), HasSubstr("a part of the path is empty"));
  EXPECT_THAT(OverrideError({"training.=5"}), HasSubstr("a part of the path is empty"));
}

TEST(MakePathsAbsoluteTest, RelativeInputPathsArePrefixedWithTheDirectory) {
  JobSpec spec;
  spec.data.train = {{.path = "corpus/a.tokens"}, {.path = "/usr/share/b.txt"}};
  spec.data.validation = {{.name = "v", .path = "../v.tokens"}};
  spec.data.tokenizer_model = "./pieces.model";
  spec.init_from.path = "runs/base";
  spec.output.directory = "runs";
  EXPECT_TRUE(MakePathsAbsolute("/home/ann/here", spec));
  EXPECT_EQ(spec.data.train[0].path, "/home/ann/here/corpus/a.tokens");
  EXPECT_EQ(spec.data.train[1].path, "/usr/share/b.txt");
  EXPECT_EQ(spec.data.validation[0].path, "/home/ann/v.tokens");
  EXPECT_EQ(spec.data.tokenizer_model, "/home/ann/here/pieces.model");
  EXPECT_EQ(spec.init_from.path, "/home/ann/here/runs/base");
  EXPECT_EQ(spec.output.directory, "runs");
}

TEST(MakePathsAbsoluteTest, ASpecWithoutRelativePathsIsUnchanged) {
  JobSpec spec;
  spec.data.train = {{.path = "/usr/share/b.txt"}};
  const JobSpec before = spec;
  EXPECT_FALSE(MakePathsAbsolute("/home/ann/here", spec));
  EXPECT_EQ(spec, before);
}

}  // namespace

}  // namespace nibble
