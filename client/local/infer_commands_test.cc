#include "client/local/local_commands.h"

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/shell/testing.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/infer/infer_testing.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/unicode.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Random weights for the preset of this name; with "?" before it, without a tokenizer, with "@N"
// after it, trained on sequences of N tokens.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenPreset(const std::string& name) {
  const bool forgets = name.starts_with('?');
  const size_t at = name.find('@');
  const std::string preset = name.substr(0, at).substr(forgets ? 1 : 0);
  NIBBLE_ASSIGN_OR_RETURN(const ModelSpec spec, ModelPreset(preset));
  auto weights = std::make_unique<TestWeights>(spec);
  if (at != std::string::npos) weights->SetTrainedSequence(std::stoll(name.substr(at + 1)));
  if (forgets) weights->ForgetTokenizer();
  return weights;
}

// As if the newest checkpoint were damaged.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenOlder(const std::string& name) {
  class Older : public TestWeights {
   public:
    using TestWeights::TestWeights;
    std::vector<std::string> notices() const override { return {"step 6 is damaged"}; }
  };
  NIBBLE_ASSIGN_OR_RETURN(const ModelSpec spec, ModelPreset(name));
  return std::make_unique<Older>(spec);
}

Outcome Eval(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "eval");
  return RunCommand([](Command app, int& exit_code) { AddEvalCommand(app, exit_code, OpenPreset); },
                    arguments);
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
  const Outcome table = Eval({"--from", "tiny-hybrid", "--data", both, "--sequence", "40"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("perplexity"));
  EXPECT_THAT(table.out, HasSubstr(Path("a")));
  EXPECT_THAT(table.out, HasSubstr(Path("b")));
  EXPECT_THAT(table.err, HasSubstr("100 % of"));

  const Outcome json = Eval({"--from", "tiny-hybrid", "--data", both, "--sequence", "40",
                             "--max-windows", "2", "-o", "json"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const nlohmann::json object = nlohmann::json::parse(json.out);
  ASSERT_EQ(object["data"].size(), 2u);
  EXPECT_EQ(object["data"][1]["path"], Path("b"));
  EXPECT_EQ(object["data"][1]["tokens"], 80);
  EXPECT_NEAR(object["data"][0]["perplexity"].get<double>(),
              std::exp(object["data"][0]["loss"].get<double>()), 1e-6);
  const Outcome yaml = Eval({"--from", "tiny-hybrid", "--data", both, "--sequence", "40",
                             "--max-windows", "2", "-o", "yaml"});
  EXPECT_EQ(JsonOfYaml(yaml.out), nlohmann::ordered_json::parse(json.out));
}

TEST_F(EvalCommand, WindowsAreAsLongAsInTrainingAndLongerOnesAreReported) {
  const auto eval = [&](std::vector<std::string> more) {
    std::vector<std::string> flags = {"--from", "tiny-hybrid@40", "--data", Path("a"), "-o",
                                      "json"};
    flags.insert(flags.end(), more.begin(), more.end());
    return Eval(flags);
  };
  const Outcome by_default = eval({});
  ASSERT_EQ(by_default.exit_code, 0) << by_default.err;
  EXPECT_EQ(nlohmann::json::parse(by_default.out)["sequence"], 40);
  EXPECT_EQ(by_default.out, eval({"--sequence", "40"}).out);
  EXPECT_THAT(by_default.err, Not(HasSubstr("trained on")));
  const Outcome longer = eval({"--sequence", "41"});
  EXPECT_EQ(longer.exit_code, 0) << longer.err;
  EXPECT_THAT(longer.err,
              HasSubstr("nibble eval: sequences of 41 tokens are beyond the 40 that the "
                        "model was trained on"));
}

TEST_F(EvalCommand, QuestionsAndTextsBeyondTheTrainedLengthAreReported) {
  WriteFile(Path("q.jsonl"), R"({"context": "123456", "choices": ["7", "89"], "gold": 0})");
  const auto questions = [&](const std::string& from) {
    return Eval({"--from", from, "--choices", Path("q.jsonl")});
  };
  EXPECT_THAT(questions("tiny-llama@8").err, HasSubstr("sequences of 9 tokens are beyond the 8"));
  EXPECT_THAT(questions("tiny-llama@9").err, Not(HasSubstr("beyond")));
  const auto generated = [](const std::string& from) {
    return RunCommand(
        [](Command app, int& exit_code) { AddGenerateCommand(app, exit_code, OpenPreset); },
        {"generate", "--from", from, "--prompt", "123456", "--max-tokens", "1"});
  };
  EXPECT_THAT(generated("tiny-llama@5").err, HasSubstr("are beyond the 5 that the model"));
  EXPECT_THAT(generated("tiny-llama@7").err, Not(HasSubstr("beyond")));
}

TEST_F(EvalCommand, AttentionMayCrossDocuments) {
  const auto loss = [&](std::vector<std::string> more) {
    std::vector<std::string> flags = {"--from",     "tiny-hybrid", "--data", Path("a"),
                                      "--sequence", "40",          "-o",     "json"};
    flags.insert(flags.end(), more.begin(), more.end());
    return nlohmann::json::parse(Eval(flags).out)["data"][0]["loss"].get<double>();
  };
  EXPECT_NE(loss({}), loss({"--run-documents-together"}));
}

TEST_F(EvalCommand, AccuracyOnQuestionsIsReported) {
  std::string questions;
  for (int i = 0; i < 6; ++i) {
    absl::StrAppend(&questions, "{\"query\": \"number ", i, "\", \"choices\": [\"x\", \"yes\"],",
                    "\"label\": ", i % 2, "}\n");
  }
  WriteFile(Path("q.jsonl"), questions);
  const Outcome table = Eval({"--from", "tiny-llama", "--choices", Path("q.jsonl")});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("questions  6\n"));
  EXPECT_THAT(table.out, HasSubstr("acc_norm"));
  const Outcome json = Eval({"--from", "tiny-llama", "--choices", Path("q.jsonl"), "-o", "json",
                             "--answers", "--max-questions", "5"});
  const nlohmann::json object = nlohmann::json::parse(json.out);
  EXPECT_EQ(object["questions"], 5);
  ASSERT_EQ(object["answers"].size(), 5u);
  EXPECT_EQ(object["answers"][4]["line"], 5);
  EXPECT_LT(object["answers"][0]["log_likelihoods"][0], 0);
  EXPECT_GE(object["acc_stderr"], 0);
}

TEST_F(EvalCommand, CheckpointsThatWerePassedOverAreReported) {
  const auto run = [](auto add, const std::vector<std::string>& words) {
    return RunCommand([&](Command app, int& exit_code) { add(app, exit_code, OpenOlder); }, words);
  };
  const Outcome eval = run(AddEvalCommand, {"eval", "--from", "tiny-llama", "--data", Path("a"),
                                            "--sequence", "40", "--max-windows", "1"});
  EXPECT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_THAT(eval.err, HasSubstr("nibble eval: step 6 is damaged\n"));
  const Outcome generated = run(AddGenerateCommand, {"generate", "--from", "tiny-llama", "--prompt",
                                                     "a", "--max-tokens", "1"});
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
  EXPECT_THAT(generated.err, HasSubstr("nibble generate: step 6 is damaged\n"));
}

TEST_F(EvalCommand, TokensOfAnotherTokenizerAreRefused) {
  WriteShard(Path("c"), RandomDocuments(3, 10, 60, 257),
             {.tokenizer = "other", .vocabulary = 257, .chunk_bytes = 64});
  const Outcome refused = Eval({"--from", "tiny-llama", "--data", Path("c")});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("tokenizer is \"other\", not the model's, \"bytes\""));
  // A model without a tokenizer accepts tokens of any.
  const Outcome taken = Eval({"--from", "?tiny-llama", "--data", Path("c"), "--sequence", "40"});
  EXPECT_EQ(taken.exit_code, 0) << taken.err;
}

TEST_F(EvalCommand, ErrorsGoToStderrWithTheirExitCode) {
  const Outcome no_model = Eval({"--from", "tiny-gpt", "--data", Path("a")});
  EXPECT_EQ(no_model.exit_code, 102);
  EXPECT_THAT(no_model.out, IsEmpty());
  EXPECT_EQ(Eval({"--from", "tiny-gpt2", "--data", Path("none")}).exit_code, 102);
  EXPECT_EQ(Eval({"--from", "tiny-gpt2", "--choices", Path("none")}).exit_code, 102);
  const Outcome no_tokenizer = Eval({"--from", "?tiny-gpt2", "--choices", Path("none")});
  EXPECT_EQ(no_tokenizer.exit_code, 1);
  EXPECT_THAT(no_tokenizer.err, HasSubstr("does not know its own"));
  const Outcome long_window =
      Eval({"--from", "tiny-gpt2", "--data", Path("a"), "--sequence", "600"});
  EXPECT_EQ(long_window.exit_code, 1);
}

TEST_F(EvalCommand, MisuseIsAUsageError) {
  EXPECT_EQ(Eval({"--from", "x"}).exit_code, 2);
  EXPECT_EQ(Eval({"--from", "x", "--data", "a", "--choices", "b"}).exit_code, 2);
  EXPECT_EQ(Eval({"--data", "a"}).exit_code, 2);
  EXPECT_EQ(Eval({"--help"}).exit_code, 0);
}

Outcome Generate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "generate");
  return RunCommand(
      [](Command app, int& exit_code) { AddGenerateCommand(app, exit_code, OpenPreset); },
      arguments);
}

TEST(GenerateCommand, TextGoesToStdoutAndSpeedToStderr) {
  const Outcome outcome =
      Generate({"--from", "tiny-hybrid", "--prompt", "Once upon", "--max-tokens", "20"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Not(IsEmpty()));
  EXPECT_EQ(outcome.out.back(), '\n');
  EXPECT_EQ(FindInvalidUtf8(outcome.out), std::string_view::npos);
  EXPECT_THAT(outcome.err, HasSubstr("prefill  9 tokens, "));
  EXPECT_THAT(outcome.err, HasSubstr("memory bandwidth limit"));
}

TEST(GenerateCommand, JsonHasEverySampleOfTheText) {
  const std::vector<std::string> flags = {"--from",        "tiny-llama", "--prompt",  "ab",
                                          "--max-tokens",  "12",         "--samples", "3",
                                          "--temperature", "1.5",        "--seed",    "7"};
  std::vector<std::string> with_json = flags;
  with_json.insert(with_json.end(), {"-o", "json"});
  const Outcome json = Generate(with_json), text = Generate(flags);
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
  EXPECT_EQ(JsonOfYaml(Generate(with_yaml).out)["samples"],
            nlohmann::ordered_json::parse(json.out)["samples"]);
}

TEST(GenerateCommand, ThePromptMayComeFromAFile) {
  const TempDirectory directory;
  WriteFile(directory.Path("p"), "same words");
  const std::vector<std::string> common = {"--from", "tiny-gpt2", "--max-tokens", "10"};
  std::vector<std::string> by_file = common, by_text = common;
  by_file.insert(by_file.end(), {"--prompt-file", directory.Path("p")});
  by_text.insert(by_text.end(), {"--prompt", "same words"});
  const Outcome a = Generate(by_file), b = Generate(by_text);
  EXPECT_EQ(a.exit_code, 0) << a.err;
  EXPECT_EQ(a.out, b.out);
}

TEST(GenerateCommand, ErrorsGoToStderrWithTheirExitCode) {
  const Outcome unknown = Generate({"--from", "tiny-gpt", "--prompt", "a"});
  EXPECT_EQ(unknown.exit_code, 102);
  EXPECT_THAT(unknown.out, IsEmpty());
  EXPECT_THAT(unknown.err, HasSubstr("there is no preset 'tiny-gpt'"));
  const Outcome no_file = Generate({"--from", "tiny-gpt2", "--prompt-file", "/nowhere/p"});
  EXPECT_EQ(no_file.exit_code, 102);
  const Outcome long_text =
      Generate({"--from", "tiny-gpt2", "--prompt", "a", "--max-tokens", "600"});
  EXPECT_EQ(long_text.exit_code, 1);
  EXPECT_THAT(long_text.err,
              HasSubstr("a sequence of 600 tokens is over the model's learned positions, 512"));
}

TEST(GenerateCommand, ANumberOutOfItsBoundsIsAUsageErrorThatStatesThem) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--temperature", "nan", "allowed: numbers, 0 to"},
      {"--temperature", "-1", "allowed: numbers, 0 to"},
      {"--top-p", "3", "allowed: numbers, above 0 to 1"},
      {"--top-p", "0", "allowed: numbers, above 0 to 1"},
      {"--top-p", "nan", "allowed: numbers, above 0 to 1"},
      {"--top-k", "-1", "allowed: whole numbers, 0 or more"}};
  for (const std::vector<std::string>& one : wrong) {
    const Outcome refused = Generate({"--from", "tiny-gpt2", "--prompt", "a", one[0], one[1]});
    EXPECT_EQ(refused.exit_code, 2) << one[0];
    EXPECT_THAT(refused.err, HasSubstr(one[2])) << one[0];
  }
}

TEST(GenerateCommand, MisuseIsAUsageError) {
  EXPECT_EQ(Generate({"--prompt", "a"}).exit_code, 2);
  EXPECT_EQ(Generate({"--from", "x", "--prompt", "a", "--prompt-file", "b"}).exit_code, 2);
  EXPECT_EQ(Generate({"--from", "x", "--max-tokens", "0"}).exit_code, 2);
  EXPECT_EQ(Generate({"--from", "x", "--precision", "fp8"}).exit_code, 2);
  EXPECT_EQ(Generate({"--help"}).exit_code, 0);
}

}  // namespace
}  // namespace nibble
