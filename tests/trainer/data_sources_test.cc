// Training on every kind of source that a job's data section can name: the same tokens give the
// same run from any kind of file, phases change the blend at their steps, and tokens need not be
// bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/trainer/trainer_process_testing.h"

namespace nibble {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class DataSources : public TrainerProcess {
 protected:
  // A spec with the given data section.
  fs::path SpecOf(const std::string& name, const std::string& data, int64_t vocab = 272) const {
    const fs::path path = root_ / (name + ".yaml");
    std::ofstream(path) << "name: run\nmodel: {preset: tiny-hybrid, vocab: " << vocab
                        << "}\nrecipe: nvfp4\n"
                        << "data:\n  sequence: 128\n"
                        << data
                        << "training: {steps: 8, batch: 4, micro_batch: 1, seed: 3, "
                           "validate_every: 0}\n"
                        << "optimizer: {lr: 0.002, warmup_steps: 2}\n"
                        << "metrics: {log_every: 1, precision_every: 0}\n"
                        << "checkpoints: {every: 0}\n"
                        << "resources: {threads: 1}\n"
                        << "output: {directory: " << (root_ / name).string() << "}\n";
    return path;
  }
  std::map<int64_t, double> Train(const std::string& name, const std::string& data,
                                  int64_t vocab = 272) const {
    EXPECT_EQ(Wait(Start(name, SpecOf(name, data, vocab))), 0) << Chatter(name);
    return LossByStep(Events(name));
  }
  static int Nibble(const std::string& arguments) {
    return Shell(BuiltProgram("client/nibble") + " " + arguments + " > /dev/null").code;
  }
  // Tokenizes the corpus as bytes; returns the shard's path.
  std::string Shard() const {
    const std::string directory = (root_ / "shards").string();
    EXPECT_EQ(Nibble("data tokenize " + (root_ / "corpus.txt").string() + " --output-dir " +
                     directory + " --validation-fraction 0"),
              0);
    return directory + "/train.tokens";
  }
};

TEST_F(DataSources, TheSameTokensGiveTheSameRunFromAnyKindOfFile) {
  const std::string shard = Shard();
  const auto of_shard = Train("shard", "  train: [" + shard + "]\n");
  ASSERT_EQ(of_shard.size(), 8u);
  const auto of_text = Train(
      "text", "  train: [" + (root_ / "corpus.txt").string() + "]\n  validation_fraction: 0\n");
  EXPECT_EQ(of_text, of_shard);

  // Tokens without a header: two bytes each, 256 ends a document.
  const std::string bytes = TextOf(shard);
  uint64_t count = 0;
  std::memcpy(&count, bytes.data() + 16, sizeof count);
  const std::string raw = (root_ / "tokens.bin").string();
  std::ofstream(raw, std::ios::binary) << bytes.substr(128, 2 * count);
  const std::string of_raw = "  train: [{path: " + raw + ", token_width: 2, document_end: 256}]\n";
  EXPECT_EQ(Train("raw", of_raw + "  tokenizer: bytes\n"), of_shard);
  // The file does not record its tokenizer, which must be given.
  EXPECT_NE(Wait(Start("unnamed", SpecOf("unnamed", of_raw))), 0);
  EXPECT_THAT(Chatter("unnamed"), AllOf(HasSubstr("data.tokenizer: " + raw),
                                        HasSubstr("does not record its tokenizer")));
  EXPECT_EQ(Train("named", of_raw + "  tokenizer_label: gpt2\n"), of_shard);
  EXPECT_THAT(Chatter("named"), HasSubstr("gpt2, is not beside the data"));
  const std::string larger = (root_ / "larger.bin").string();
  std::ofstream(larger, std::ios::binary) << std::string(2000, '\x01');  // repeats token 257
  EXPECT_NE(Wait(Start("larger", SpecOf("larger", "  train: [{path: " + larger +
                                                      ", token_width: 2}]\n  tokenizer: bytes\n"))),
            0);
  EXPECT_THAT(Chatter("larger"), HasSubstr("data.tokenizer: bytes did not make these tokens"));
  // Without a token width such a file is read as text and refused.
  EXPECT_EQ(Wait(Start("blind", SpecOf("blind", "  train: [" + raw + "]\n"))),
            static_cast<int>(TrainerExit::kSpec));
}

TEST_F(DataSources, JsonLinesAndCompressedFilesAreTrainedOnAndOtherDataIsRefused) {
  const auto of = [](const fs::path& path) {
    return "  train: [" + path.string() + "]\n  validation_fraction: 0\n";
  };
  const auto text = Train("text", of(root_ / "corpus.txt") + "  split: file\n");
  const std::string corpus = TextOf(root_ / "corpus.txt");
  const fs::path lines = root_ / "corpus.jsonl";
  std::ofstream(lines) << json({{"body", corpus}}).dump() << "\n";
  EXPECT_EQ(Train("lines", of(lines) + "  text_field: body\n"), text);
  ASSERT_EQ(Shell("gzip -k " + lines.string()).code, 0);
  EXPECT_EQ(Train("gzip", of(root_ / "corpus.jsonl.gz") + "  text_field: body\n"), text);

  EXPECT_NE(Wait(Start("field", SpecOf("field", of(lines)))), 0);
  EXPECT_THAT(Chatter("field"), HasSubstr("corpus.jsonl, line 1: it has no field 'text'"));
  fs::copy_file(lines, root_ / "corpus.parquet");
  EXPECT_NE(Wait(Start("other", SpecOf("other", of(root_ / "corpus.parquet")))), 0);
  EXPECT_THAT(Chatter("other"), HasSubstr("corpus.parquet: Parquet is not read"));
}

TEST_F(DataSources, PhasesChangeTheBlendAtTheirSteps) {
  const std::string first = (root_ / "corpus.txt").string();
  const std::string second = (root_ / "numbers.txt").string();
  {
    std::ofstream out(second);
    for (int i = 0; i < 20000; ++i) out << i * 7 << (i % 50 == 49 ? "\n\n" : " ");
  }
  const std::string both = "  validation_fraction: 0\n  train: [" + first + ", " + second + "]\n";
  const auto alone = Train("alone", "  validation_fraction: 0\n  train: [" + first + "]\n");
  const auto phased = Train(
      "phased", both + "  phases: [{parts: 75, weights: [1, 0]}, {parts: 25, weights: [1, 3]}]\n");
  ASSERT_EQ(phased.size(), 8u);
  for (int64_t step = 0; step < 6; ++step) EXPECT_EQ(phased.at(step), alone.at(step)) << step;
  EXPECT_GT(phased.at(6), 1.2 * alone.at(6));

  EXPECT_EQ(Wait(Start("wrong", SpecOf("wrong", both + "  phases: [{parts: 1, weights: [1]}]\n"))),
            2);
  EXPECT_THAT(Chatter("wrong"), HasSubstr("data.phases[0].weights: 1 weights for the 2"));
}

TEST_F(DataSources, TheTokenizerFollowsItsTokenShards) {
  const std::string directory = (root_ / "pieces").string();
  ASSERT_EQ(Nibble("data tokenize " + (root_ / "corpus.txt").string() + " --output-dir " +
                   directory + " --train-tokenizer 300"),
            0);
  const std::string shard = directory + "/train.tokens";
  // No tokenizer is named: commands that decode the run's tokens use that of its data.
  ASSERT_EQ(Train("run", "  train: [" + shard + "]\n", 304).size(), 8u);
  const std::string run = (root_ / "run").string();
  EXPECT_EQ(Nibble("eval --from " + run + " --data " + shard + " 2> /dev/null"), 0);
  EXPECT_EQ(Nibble("generate --from " + run + " --prompt 'the cat' --max-tokens 8 2> /dev/null"),
            0);
  ASSERT_EQ(Nibble("checkpoint export " + run + " " + (root_ / "model").string()), 0);
  EXPECT_EQ(json::parse(std::ifstream(root_ / "model/tokenizer.json"))["model"]["vocab"].size(),
            300u);
  EXPECT_EQ(
      Nibble("eval --from " + (root_ / "model").string() + " --data " + shard + " 2> /dev/null"),
      0);

  EXPECT_NE(
      Wait(Start("other", SpecOf("other", "  train: [" + shard + "]\n  tokenizer: bytes\n", 304))),
      0);
  EXPECT_THAT(Chatter("other"), AllOf(HasSubstr("data.tokenizer: bytes, but " + shard),
                                      HasSubstr("was made with sp:")));
  EXPECT_NE(Wait(Start("small", SpecOf("small", "  train: [" + shard + "]\n", 272))), 0);
  EXPECT_THAT(Chatter("small"), HasSubstr("model.vocab: 272 is under 300"));
}

TEST_F(DataSources, ARunOnSentencePieceTokensGeneratesText) {
  const std::string directory = (root_ / "pieces").string();
  ASSERT_EQ(Nibble("data tokenize " + (root_ / "corpus.txt").string() + " --output-dir " +
                   directory + " --train-tokenizer 300"),
            0);
  std::string model;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".model") model = entry.path().string();
  }
  ASSERT_FALSE(model.empty());
  const std::string tokenizer =
      "  tokenizer: sentencepiece\n  tokenizer_model: " + model + "\n  validation_fraction: 0\n";
  const auto of_text =
      Train("text", "  train: [" + (root_ / "corpus.txt").string() + "]\n" + tokenizer, 304);
  ASSERT_EQ(of_text.size(), 8u);
  EXPECT_LT(of_text.at(7), of_text.at(0));
  // The run stores its tokenizer, so that generation gives text.
  EXPECT_EQ(Nibble("generate --from " + (root_ / "text").string() +
                   " --prompt 'the cat' --max-tokens 8 2> /dev/null"),
            0);
  // Shards of different tokenizers cannot be mixed.
  EXPECT_EQ(Wait(Start("mixed", SpecOf("mixed",
                                       "  train: [" + directory + "/train.tokens, " + Shard() +
                                           "]\n" + tokenizer,
                                       304))),
            3);  // an error of the spec
  EXPECT_THAT(Chatter("mixed"), HasSubstr("was made with bytes"));
}

}  // namespace
}  // namespace nibble
