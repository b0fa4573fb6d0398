#include "client/local/eval_command.h"

#include <cmath>
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

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The name of a preset opens random weights of it; behind a "?" one that knows no tokenizer.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenPreset(const std::string& name) {
  const bool forgets = name.starts_with('?');
  const absl::StatusOr<ModelSpec> spec = ModelPreset(forgets ? name.substr(1) : name);
  if (!spec.ok()) return spec.status();
  auto weights = std::make_unique<TestWeights>(*spec);
  if (forgets) weights->ForgetTokenizer();
  return weights;
}

Outcome Nibble(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "eval");
  return RunCommand(
      [](CLI::App& app, int& exit_code) { AddEvalCommand(app, exit_code, OpenPreset); }, arguments);
}

class EvalCommand : public testing::Test {
 protected:
  EvalCommand() {
    for (const char* name : {"a", "b"}) {
      const uint32_t seed = name[0];
      WriteShard(directory.Path(name), RandomDocuments(seed, 10, 60, 257),
                 {.tokenizer = "bytes", .vocabulary = 257, .chunk_bytes = 64});
    }
  }
  std::string Path(const std::string& name) const { return directory.Path(name); }

  const TempDirectory directory;
};

TEST_F(EvalCommand, LossOfEveryFileIsPrinted) {
  const std::string both = Path("a") + "," + Path("b");
  const Outcome table = Nibble({"--from", "tiny-hybrid", "--data", both, "--sequence", "40"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("perplexity"));
  EXPECT_THAT(table.out, HasSubstr(Path("a")));
  EXPECT_THAT(table.out, HasSubstr(Path("b")));
  EXPECT_THAT(table.err, HasSubstr("100 % of"));

  const Outcome json = Nibble({"--from", "tiny-hybrid", "--data", both, "--sequence", "40",
                               "--max-windows", "2", "-o", "json"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const nlohmann::json object = nlohmann::json::parse(json.out);
  ASSERT_EQ(object["data"].size(), 2u);
  EXPECT_EQ(object["data"][1]["path"], Path("b"));
  EXPECT_EQ(object["data"][1]["tokens"], 80);
  EXPECT_NEAR(object["data"][0]["perplexity"].get<double>(),
              std::exp(object["data"][0]["loss"].get<double>()), 1e-6);
  const Outcome yaml = Nibble({"--from", "tiny-hybrid", "--data", both, "--sequence", "40",
                               "--max-windows", "2", "-o", "yaml"});
  EXPECT_EQ(JsonOfYaml(yaml.out), nlohmann::ordered_json::parse(json.out));
}

TEST_F(EvalCommand, DocumentsMayRunTogether) {
  const auto loss = [&](std::vector<std::string> more) {
    std::vector<std::string> flags = {"--from",     "tiny-hybrid", "--data", Path("a"),
                                      "--sequence", "40",          "-o",     "json"};
    flags.insert(flags.end(), more.begin(), more.end());
    return nlohmann::json::parse(Nibble(flags).out)["data"][0]["loss"].get<double>();
  };
  EXPECT_NE(loss({}), loss({"--run-documents-together"}));
}

TEST_F(EvalCommand, QuestionsAreCounted) {
  std::string questions;
  for (int i = 0; i < 6; ++i) {
    absl::StrAppend(&questions, "{\"query\": \"number ", i, "\", \"choices\": [\"x\", \"yes\"],",
                    "\"label\": ", i % 2, "}\n");
  }
  WriteFile(Path("q.jsonl"), questions);
  const Outcome table = Nibble({"--from", "tiny-llama", "--choices", Path("q.jsonl")});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("questions  6\n"));
  EXPECT_THAT(table.out, HasSubstr("acc_norm"));
  const Outcome json = Nibble({"--from", "tiny-llama", "--choices", Path("q.jsonl"), "-o", "json",
                               "--answers", "--max-questions", "5"});
  const nlohmann::json object = nlohmann::json::parse(json.out);
  EXPECT_EQ(object["questions"], 5);
  ASSERT_EQ(object["answers"].size(), 5u);
  EXPECT_EQ(object["answers"][4]["line"], 5);
  EXPECT_LT(object["answers"][0]["log_likelihoods"][0], 0);
  EXPECT_GE(object["acc_stderr"], 0);
}

TEST_F(EvalCommand, TokensOfAnotherTokenizerAreRefused) {
  WriteShard(Path("c"), RandomDocuments(3, 10, 60, 257),
             {.tokenizer = "other", .vocabulary = 257, .chunk_bytes = 64});
  const Outcome refused = Nibble({"--from", "tiny-llama", "--data", Path("c")});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("tokenizer is \"other\", not the model's, \"bytes\""));
  // Where the model does not know its own, the tokens are taken for what they are.
  const Outcome taken = Nibble({"--from", "?tiny-llama", "--data", Path("c"), "--sequence", "40"});
  EXPECT_EQ(taken.exit_code, 0) << taken.err;
}

TEST_F(EvalCommand, ErrorsGoToStderrWithTheirCode) {
  const Outcome no_model = Nibble({"--from", "tiny-gpt", "--data", Path("a")});
  EXPECT_EQ(no_model.exit_code, 102);
  EXPECT_THAT(no_model.out, IsEmpty());
  EXPECT_EQ(Nibble({"--from", "tiny-gpt2", "--data", Path("none")}).exit_code, 102);
  EXPECT_EQ(Nibble({"--from", "tiny-gpt2", "--choices", Path("none")}).exit_code, 102);
  const Outcome no_tokenizer = Nibble({"--from", "?tiny-gpt2", "--choices", Path("none")});
  EXPECT_EQ(no_tokenizer.exit_code, 1);
  EXPECT_THAT(no_tokenizer.err, HasSubstr("does not know its own"));
  const Outcome long_window =
      Nibble({"--from", "tiny-gpt2", "--data", Path("a"), "--sequence", "600"});
  EXPECT_EQ(long_window.exit_code, 1);
}

TEST_F(EvalCommand, MisuseIsAUsageError) {
  EXPECT_EQ(Nibble({"--from", "x"}).exit_code, 2);
  EXPECT_EQ(Nibble({"--from", "x", "--data", "a", "--choices", "b"}).exit_code, 2);
  EXPECT_EQ(Nibble({"--data", "a"}).exit_code, 2);
  EXPECT_EQ(Nibble({"--help"}).exit_code, 0);
}

}  // namespace
}  // namespace nibble
