#include "client/local/generate_command.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/local/command_testing.h"
#include "client/local/yaml_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/infer/infer_testing.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/utf8.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The name of a preset opens random weights of it.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenPreset(const std::string& name) {
  const absl::StatusOr<ModelSpec> spec = ModelPreset(name);
  if (!spec.ok()) return spec.status();
  return std::make_unique<TestWeights>(*spec);
}

Outcome Nibble(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "generate");
  return RunCommand(
      [](CLI::App& app, int& exit_code) { AddGenerateCommand(app, exit_code, OpenPreset); },
      arguments);
}

TEST(GenerateCommand, TextGoesToStdoutAndSpeedToStderr) {
  const Outcome outcome =
      Nibble({"--from", "tiny-hybrid", "--prompt", "Once upon", "--max-tokens", "20"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Not(IsEmpty()));
  EXPECT_EQ(outcome.out.back(), '\n');
  EXPECT_EQ(FindInvalidUtf8(outcome.out), std::string_view::npos);
  EXPECT_THAT(outcome.err, HasSubstr("prefill  9 tokens, "));
  EXPECT_THAT(outcome.err, HasSubstr("memory's limit"));
}

TEST(GenerateCommand, JsonHoldsEverySampleAndAgreesWithTheText) {
  const std::vector<std::string> flags = {"--from",        "tiny-llama", "--prompt",  "ab",
                                          "--max-tokens",  "12",         "--samples", "3",
                                          "--temperature", "1.5",        "--seed",    "7"};
  std::vector<std::string> with_json = flags;
  with_json.insert(with_json.end(), {"-o", "json"});
  const Outcome json = Nibble(with_json), text = Nibble(flags);
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const nlohmann::json object = nlohmann::json::parse(json.out);
  EXPECT_EQ(object["model"], "tiny-llama");
  EXPECT_EQ(object["prompt_tokens"], 2);
  ASSERT_EQ(object["samples"].size(), 3u);
  EXPECT_NE(object["samples"][0]["tokens"], object["samples"][1]["tokens"]);
  EXPECT_GT(object["decode"]["limit_tokens_per_second"], 0);
  std::string expected;
  for (int i = 0; i < 3; ++i) {
    const nlohmann::json& sample = object["samples"][i];
    absl::StrAppend(&expected, "--- sample ", i + 1, " of 3\n", sample["text"].get<std::string>(),
                    "\n");
    EXPECT_TRUE(sample["stop"] == "max-tokens" || sample["stop"] == "end-of-document");
  }
  EXPECT_EQ(text.out, expected);
  std::vector<std::string> with_yaml = flags;
  with_yaml.insert(with_yaml.end(), {"-o", "yaml"});
  EXPECT_EQ(JsonOfYaml(Nibble(with_yaml).out)["samples"],
            nlohmann::ordered_json::parse(json.out)["samples"]);
}

TEST(GenerateCommand, ThePromptMayComeFromAFile) {
  const TempDirectory directory;
  WriteFile(directory.Path("p"), "same words");
  const std::vector<std::string> common = {"--from", "tiny-gpt2", "--max-tokens", "10"};
  std::vector<std::string> by_file = common, by_text = common;
  by_file.insert(by_file.end(), {"--prompt-file", directory.Path("p")});
  by_text.insert(by_text.end(), {"--prompt", "same words"});
  const Outcome a = Nibble(by_file), b = Nibble(by_text);
  EXPECT_EQ(a.exit_code, 0) << a.err;
  EXPECT_EQ(a.out, b.out);
}

TEST(GenerateCommand, ErrorsGoToStderrWithTheirCode) {
  const Outcome unknown = Nibble({"--from", "tiny-gpt", "--prompt", "a"});
  EXPECT_EQ(unknown.exit_code, 102);
  EXPECT_THAT(unknown.out, IsEmpty());
  EXPECT_THAT(unknown.err, HasSubstr("there is no preset 'tiny-gpt'"));
  const Outcome no_file = Nibble({"--from", "tiny-gpt2", "--prompt-file", "/nowhere/p"});
  EXPECT_EQ(no_file.exit_code, 102);
  const Outcome long_text = Nibble({"--from", "tiny-gpt2", "--prompt", "a", "--max-tokens", "600"});
  EXPECT_EQ(long_text.exit_code, 1);
  EXPECT_THAT(long_text.err,
              HasSubstr("a sequence of 600 tokens is over the model's learned positions, 512"));
  const Outcome bad = Nibble({"--from", "tiny-gpt2", "--prompt", "a", "--top-p", "3"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr("top_p: 3 is not in (0, 1]"));
}

TEST(GenerateCommand, MisuseIsAUsageError) {
  EXPECT_EQ(Nibble({"--prompt", "a"}).exit_code, 2);
  EXPECT_EQ(Nibble({"--from", "x", "--prompt", "a", "--prompt-file", "b"}).exit_code, 2);
  EXPECT_EQ(Nibble({"--from", "x", "--max-tokens", "0"}).exit_code, 2);
  EXPECT_EQ(Nibble({"--from", "x", "--precision", "fp8"}).exit_code, 2);
  EXPECT_EQ(Nibble({"--help"}).exit_code, 0);
}

}  // namespace
}  // namespace nibble
