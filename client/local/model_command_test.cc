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
  for (const char* part : {"62: 6 attention, 28 mlp, 28 mamba", "d_ff 20480, relu2",
                           "128 heads, dimension 80", "40 query heads, 8 key-value heads",
                           "12310001152  12.31 B", "sequences of 2048", "memory per rank, of 64"}) {
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
  const Outcome shown = ModelVerb(
      {"model", "show", "tiny-hybrid", "--sequence", "100", "--ranks", "3", "-o", "json"});
  ASSERT_EQ(shown.exit_code, 0);
  const nlohmann::json report = nlohmann::json::parse(shown.out);
  EXPECT_EQ(report["spec"]["pattern"], "M-M*-M-");
  EXPECT_EQ(report["sequence"], 100);
  EXPECT_EQ(report["ranks"], 3);
  int64_t sum = 0;
  for (const auto& part : report["parameters_by_part"]) sum += part.get<int64_t>();
  EXPECT_EQ(sum, report["parameters"]);
  EXPECT_TRUE(report["flops_per_token"]["training"].is_number_integer());
  const nlohmann::json& bytes = report["bytes_per_rank"];
  EXPECT_EQ(bytes["master"], 4 * ((sum + 2) / 3));
  EXPECT_EQ(bytes["total_bf16_recomputed"],
            bytes["master"].get<int64_t>() + bytes["moments"].get<int64_t>() +
                bytes["gradients"].get<int64_t>() + bytes["working_bf16"].get<int64_t>() +
                bytes["activations_recomputed"].get<int64_t>());
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
  EXPECT_EQ(ModelVerb({"model", "--help"}).exit_code, 0);
}

}  // namespace
}  // namespace nibble
