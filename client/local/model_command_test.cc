#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/local/local_commands.h"
#include "client/shell/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/model_spec.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Outcome ModelVerb(std::vector<std::string> arguments) {
  return RunCommand(AddModelCommand, arguments);
}

TEST(ModelCommandTest, PresetsListsEveryModelWithItsSize) {
  const Outcome table = ModelVerb({"model", "presets"});
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_THAT(table.err, IsEmpty());
  for (const std::string& name : ModelPresetNames()) EXPECT_THAT(table.out, HasSubstr(name));
  EXPECT_THAT(table.out, HasSubstr("12.31 B     5120  131072      62  M-M-M-M*-M-"));
  EXPECT_THAT(table.out, HasSubstr("*- x 12\n"));

  const Outcome json = ModelVerb({"model", "presets", "-o", "json"});
  const nlohmann::json models = nlohmann::json::parse(json.out);
  ASSERT_EQ(models.size(), ModelPresetNames().size());
  EXPECT_EQ(models[4]["name"], "gpt2-125m");
  EXPECT_EQ(models[4]["parameters"], 124439808);
}

TEST(ModelCommandTest, ShowPrintsSizesPartsOperationsAndMemory) {
  const Outcome shown = ModelVerb({"model", "show", "nemotron-h-12b", "--ranks", "64"});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_THAT(shown.err, IsEmpty());
  for (const char* part :
       {"62: 6 attention, 28 mlp, 28 mamba", "d_ff 20480, relu2", "128 heads, dimension 80",
        "40 query heads, 8 key-value heads", "12310001152  12.31 B", "sequences of 2048",
        "memory per rank, of 64", "optimizer  gradients"}) {
    EXPECT_THAT(shown.out, HasSubstr(part));
  }
}

TEST(ModelCommandTest, ShowOmitsPartsThatTheModelLacks) {
  const Outcome shown = ModelVerb({"model", "show", "gpt2-125m"});
  EXPECT_THAT(shown.out, Not(HasSubstr("mamba")));
  EXPECT_THAT(shown.out, HasSubstr("learned, 1024"));
  EXPECT_THAT(shown.out, HasSubstr("sequences of 1024"));
}

TEST(ModelCommandTest, CountsInJsonAddUp) {
  const Outcome shown =
      ModelVerb({"model", "show", "tiny-hybrid", "--sequence", "96", "--ranks", "3", "-o", "json"});
  ASSERT_EQ(shown.exit_code, 0);
  const nlohmann::json report = nlohmann::json::parse(shown.out);
  EXPECT_EQ(report["spec"]["pattern"], "M-M*-M-");
  EXPECT_EQ(report["sequence"], 96);
  EXPECT_EQ(report["ranks"], 3);
  int64_t sum = 0;
  for (const auto& part : report["parameters_by_part"]) sum += part.get<int64_t>();
  EXPECT_EQ(sum, report["parameters"]);
  EXPECT_TRUE(report["flops_per_token"]["training"].is_number_integer());
  for (const char* level : {"optimizer", "gradients", "weights"}) {
    const nlohmann::json& bytes = report["bytes_per_rank"][level];
    EXPECT_EQ(bytes["master"], 4 * ((sum + 2) / 3));
    int64_t total = 0;
    for (const auto& [name, part] : bytes.items()) {
      if (name != "total") total += part.get<int64_t>();
    }
    EXPECT_EQ(bytes["total"], total);
  }
}

TEST(ModelCommandTest, ShowPlansEveryPresetUnderItsDefaultRecipe) {
  for (const std::string& name : ModelPresetNames()) {
    EXPECT_EQ(ModelVerb({"model", "show", name, "--ranks", "8"}).exit_code, 0) << name;
  }
}

TEST(ModelCommandTest, ShowComparesEachLevelWithTheCard) {
  const std::vector<std::string> words = {"model",      "show", "nemotron-h-12b",  "--ranks", "8",
                                          "--sequence", "8192", "--device-memory", "141GB"};
  const Outcome shown = ModelVerb(words);
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  for (const char* part :
       {"a micro-batch is 1 x 8192 tokens; recipe nvfp4 on compute capability 9.0 (H100, H200)",
        "of the card's 141.0 GB", "largest --batch", "largest, --recompute"}) {
    EXPECT_THAT(shown.out, HasSubstr(part));
  }

  std::vector<std::string> one = words;
  one.insert(one.end(), {"--sharding", "zero3", "--recompute", "-o", "json"});
  const nlohmann::json report = nlohmann::json::parse(ModelVerb(one).out);
  ASSERT_EQ(report["bytes_per_rank"].size(), 1);
  const nlohmann::json& weights = report["bytes_per_rank"]["weights"];
  EXPECT_TRUE(weights["fits"].get<bool>());
  EXPECT_GE(weights["largest_batch_recomputed"], weights["largest_batch"]);
  EXPECT_EQ(report["training"]["device_bytes"], 141000000000);
}

TEST(ModelCommandTest, APlanThatDoesNotFitNamesWhatDoes) {
  const auto shown = [](std::vector<std::string> more) {
    std::vector<std::string> words = {"model", "show",       "nemotron-h-12b", "--sequence",
                                      "8192",  "--sharding", "weights"};
    words.insert(words.end(), more.begin(), more.end());
    return ModelVerb(words).out;
  };
  EXPECT_THAT(shown({"--ranks", "8", "--batch", "8", "--device-memory", "141GB"}),
              HasSubstr("weights does not fit: it fits with --"));
  EXPECT_THAT(shown({"--ranks", "8", "--device-memory", "24GB"}),
              HasSubstr("weights does not fit: it fits with --batch 1 --recompute on "));
  EXPECT_THAT(shown({"--ranks", "8", "--device-memory", "8GB"}),
              HasSubstr("nor does one sequence with --recompute on 1024 nodes"));
  EXPECT_THAT(shown({"--device-memory", "1TB"}), HasSubstr("one rank fits\n"));
}

TEST(ModelCommandTest, NodesPrintTheBytesAndTheEfficiencyOfStepsOnEachPowerOfTwo) {
  const std::vector<std::string> words = {"model",      "show", "nemotron-h-8b", "--nodes",  "4",
                                          "--sequence", "8192", "--sharding",    "optimizer"};
  const Outcome shown = ModelVerb(words);
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("memory per rank, of 32"));
  EXPECT_THAT(shown.out, HasSubstr("steps with level optimizer sharded; per card 1 micro-batch of "
                                   "1 x 8192 tokens"));

  std::vector<std::string> json = words;
  json.insert(json.end(), {"-o", "json"});
  const nlohmann::json report = nlohmann::json::parse(ModelVerb(json).out);
  const nlohmann::json& steps = report["steps"]["optimizer"];
  ASSERT_EQ(steps.size(), 3);
  EXPECT_EQ(steps[0]["cards"], 8);
  EXPECT_EQ(steps[0]["packed"]["gradient_fabric_bytes"], 0);
  EXPECT_EQ(steps[2]["cards"], 32);
  const int64_t parameters = report["parameters"].get<int64_t>();
  EXPECT_EQ(steps[2]["bf16"]["gradient_link_bytes"], 4 * parameters * 7 / 8);
  for (const nlohmann::json& step : steps) {
    EXPECT_LT(step["packed"]["gather_link_bytes"], step["bf16"]["gather_link_bytes"]);
    EXPECT_GE(step["packed"]["efficiency"], step["bf16"]["efficiency"]);
  }
}

TEST(ModelCommandTest, RanksFillTheirNodes) {
  const Outcome shown = ModelVerb({"model", "show", "tiny-llama", "--ranks", "12"});
  EXPECT_EQ(shown.exit_code, 1);
  EXPECT_THAT(shown.err, HasSubstr("ranks: 12 is not a multiple of the cards per node, 8"));
}

TEST(ModelCommandTest, AnUnknownModelIsNotFound) {
  const Outcome shown = ModelVerb({"model", "show", "nemotron-h-12"});
  EXPECT_EQ(shown.exit_code, 102);
  EXPECT_THAT(shown.out, IsEmpty());
  EXPECT_EQ(shown.err,
            "nibble model show: model: there is no preset 'nemotron-h-12'; the nearest is "
            "'nemotron-h-12b'\n");
}

TEST(ModelCommandTest, ASequenceLongerThanTheLearnedPositionsIsAnError) {
  const Outcome shown = ModelVerb({"model", "show", "gpt2-125m", "--sequence", "1025"});
  EXPECT_EQ(shown.exit_code, 1);
  EXPECT_THAT(shown.out, IsEmpty());
  EXPECT_EQ(shown.err,
            "nibble model show: sequence: 1025 is over the model's max_positions, 1024\n");
}

TEST(ModelCommandTest, TooManyRanksAreAnError) {
  const Outcome shown = ModelVerb({"model", "show", "tiny-llama", "--ranks", "2000000"});
  EXPECT_EQ(shown.exit_code, 1);
  EXPECT_THAT(shown.err, HasSubstr("ranks: 2000000 is not in [1, 1048576]"));
}

TEST(ModelCommandTest, MisuseIsAUsageError) {
  EXPECT_EQ(ModelVerb({"model"}).exit_code, 2);
  EXPECT_EQ(ModelVerb({"model", "show"}).exit_code, 2);
  EXPECT_EQ(ModelVerb({"model", "show", "tiny-llama", "--sequence", "0"}).exit_code, 2);
  EXPECT_EQ(ModelVerb({"model", "show", "tiny-llama", "--ranks", "few"}).exit_code, 2);
  EXPECT_EQ(ModelVerb({"model", "presets", "-o", "xml"}).exit_code, 2);
  EXPECT_EQ(ModelVerb({"model", "show", "tiny-llama", "--link", "1GB/s"}).exit_code, 2);
  EXPECT_EQ(ModelVerb({"model", "show", "tiny-llama", "--nodes", "2", "--ranks", "2"}).exit_code,
            2);
  const Outcome level = ModelVerb({"model", "show", "tiny-llama", "--sharding", "zero4"});
  EXPECT_EQ(level.exit_code, 2);
  EXPECT_THAT(level.err, HasSubstr("allowed: optimizer (zero1), gradients (zero2)"));
  EXPECT_EQ(ModelVerb({"model", "--help"}).exit_code, 0);
}

}  // namespace
}  // namespace nibble
