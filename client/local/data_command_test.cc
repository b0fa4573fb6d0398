#include "client/local/local_commands.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/shell/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Outcome Nibble(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "data");
  return RunCommand(AddDataCommand, arguments);
}

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class DataCommandTest : public testing::Test {
 protected:
  DataCommandTest() {
    for (int file = 0; file < 4; ++file) {
      WriteFile(directory_.Path(absl::StrCat("in/", file, ".txt")), TestText(file, 300));
    }
    WriteFile(directory_.Path("in/notes.md"), "\xff not to be read");
  }

  std::string Path(const std::string& name) const { return directory_.Path(name); }

  // `tokenize` of the text files into `out`, with more arguments.
  Outcome Tokenize(const std::string& out, const std::vector<std::string>& more = {}) const {
    return Nibble(std::vector<std::string>{"tokenize", Path("in"), "--extension", ".txt",
                                           "--output-dir", Path(out)} +
                  more);
  }

  TempDirectory directory_;
};

TEST_F(DataCommandTest, TokenizeMakesShardsOfBytesAndReportsTheirContents) {
  const Outcome made = Tokenize("out", {"--validation-fraction", "0.2", "-o", "json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const json report = json::parse(made.out);
  EXPECT_EQ(report["tokenizer"], "bytes");
  EXPECT_EQ(report["vocabulary"], 257);
  EXPECT_TRUE(report["model"].is_null());
  EXPECT_EQ(report["files"], 4);
  const json &train = report["train"], &validation = report["validation"];
  EXPECT_EQ(train["path"], Path("out/train.tokens"));
  EXPECT_EQ(train["tokens"].get<int64_t>(),
            train["bytes"].get<int64_t>() + train["documents"].get<int64_t>());
  EXPECT_GT(validation["documents"], 0);
  const auto shard = TokenShard::Open(Path("out/train.tokens"));
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ(train["tokens"], (*shard)->tokens());
  EXPECT_EQ(train["documents"], (*shard)->documents());
}

TEST_F(DataCommandTest, ADocumentWithAZeroByteIsSkippedWithANoteOrKept) {
  const auto shards = [&](const std::string& out) {
    return Contents(Path(out + "/train.tokens")) + Contents(Path(out + "/validation.tokens"));
  };
  ASSERT_EQ(Tokenize("clean").exit_code, 0);
  WriteFile(Path("in/4.txt"), std::string_view("nu\0l", 4));
  const Outcome skipped = Tokenize("skipped");
  ASSERT_EQ(skipped.exit_code, 0) << skipped.err;
  EXPECT_THAT(skipped.out,
              HasSubstr("skipped    1 document with a zero byte was skipped, the first "
                        "at " +
                        Path("in/4.txt") + ": byte 2\n"));
  EXPECT_EQ(shards("skipped"), shards("clean"));
  const Outcome kept = Tokenize("kept", {"--control", "keep", "-o", "json"});
  ASSERT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_EQ(json::parse(kept.out)["skipped"], 0);
  EXPECT_NE(shards("kept"), shards("clean"));
  const Outcome refused = Tokenize("refused", {"--control", "refuse"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr(Path("in/4.txt") + ": byte 2 is zero"));
  EXPECT_EQ(Tokenize("other", {"--control", "drop"}).exit_code, 2);
}

TEST_F(DataCommandTest, AKeptZeroByteSurvivesATrainedTokenizer) {
  WriteFile(Path("in/4.txt"), std::string_view("nu\0l", 4));
  ASSERT_EQ(Tokenize("kept", {"--control", "keep", "--train-tokenizer", "400",
                              "--validation-fraction", "0"})
                .exit_code,
            0);
  const auto shard = TokenShard::Open(Path("kept/train.tokens"));
  ASSERT_TRUE(shard.ok()) << shard.status();
  const int64_t last = (*shard)->DocumentBegin((*shard)->documents() - 1);
  std::vector<int32_t> tokens(static_cast<size_t>((*shard)->tokens() - last));
  ASSERT_TRUE((*shard)->Read(last, (*shard)->tokens() - last, tokens.data()).ok());
  tokens.pop_back();  // the end of the document
  const auto tokenizer = OpenTokenizer((*shard)->tokenizer(), Path("kept"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto text = (*tokenizer)->Decode(tokens);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, std::string_view("nu\0l", 4));
}

TEST_F(DataCommandTest, ProgressGoesToStderrOncePerTenth) {
  const Outcome made = Tokenize("out");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr("tokenizer  bytes, vocabulary 257\n"),
                              HasSubstr(Path("out/train.tokens")), Not(HasSubstr("%"))));
  std::vector<std::string> percents;
  for (size_t at = 0; (at = made.err.find(" %,", at)) != std::string::npos; ++at) {
    percents.push_back(made.err.substr(at - 3, 3));
  }
  EXPECT_GE(percents.size(), 4u);
  EXPECT_LE(percents.size(), 10u);
  EXPECT_EQ(percents.back(), "100");
  EXPECT_EQ(std::set<std::string>(percents.begin(), percents.end()).size(), percents.size());
}

TEST_F(DataCommandTest, TokenizerModelsAreStoredBesideTheShardsThatNameThem) {
  const Outcome trained =
      Tokenize("trained", {"--train-tokenizer", "400", "--threads", "2", "-o", "json"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("training a SentencePiece model of 400 pieces"));
  const json report = json::parse(trained.out);
  const std::string label = report["tokenizer"], model = report["model"];
  EXPECT_EQ(model, Path("trained/sp-" + label.substr(3) + ".model"));
  EXPECT_EQ(report["vocabulary"], 400);
  EXPECT_LT(3 * report["train"]["tokens"].get<int64_t>(),
            2 * report["train"]["bytes"].get<int64_t>());

  WriteFile(Path("my.model"), Contents(model));
  const Outcome given =
      Tokenize("given", {"--tokenizer", Path("my.model"), "--threads", "1", "-o", "json"});
  ASSERT_EQ(given.exit_code, 0) << given.err;
  EXPECT_EQ(json::parse(given.out)["tokenizer"], label);
  for (const char* shard : {"train.tokens", "validation.tokens"}) {
    EXPECT_EQ(Contents(Path(std::string("given/") + shard)),
              Contents(Path(std::string("trained/") + shard)));
  }
  EXPECT_EQ(Contents(Path("given/sp-" + label.substr(3) + ".model")), Contents(model));
}

TEST_F(DataCommandTest, ShardsOfATokenizerJsonDecodeToTheText) {
  const std::string given = "tests/interop/fixtures/tokenizers/llama3/tokenizer.json";
  for (int threads = 1; threads <= 2; ++threads) {
    const std::string out = absl::StrCat("out", threads);
    const Outcome made =
        Tokenize(out, {"--tokenizer", given, "--split", "file", "--validation-fraction", "0",
                       "--threads", absl::StrCat(threads), "-o", "json"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const std::string label = json::parse(made.out)["tokenizer"];
    EXPECT_THAT(label, testing::StartsWith("hf:"));
    EXPECT_TRUE(std::filesystem::exists(Path(out + "/hf-" + label.substr(3) + ".json")));
  }
  EXPECT_EQ(Contents(Path("out1/train.tokens")), Contents(Path("out2/train.tokens")));
  const Outcome shown = Nibble({"inspect", Path("out1/train.tokens"), "--documents", "1", "--text",
                                "--max-tokens", "1000000", "-o", "json"});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr(json(TestText(0, 300)).dump()));
}

TEST_F(DataCommandTest, TheFieldOfJsonLinesIsAnOption) {
  WriteFile(Path("rows.jsonl"), "{\"body\": \"one\"}\n{\"body\": \"two\"}\n");
  const std::vector<std::string> command = {"tokenize",   Path("rows.jsonl"),      "--output-dir",
                                            Path("rows"), "--validation-fraction", "0"};
  const Outcome refused = Nibble(command);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("rows.jsonl, line 1: it has no field 'text'"));
  const Outcome made =
      Nibble(command + std::vector<std::string>{"--text-field", "body", "-o", "json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(json::parse(made.out)["train"]["documents"], 2);
}

TEST_F(DataCommandTest, TheTypeAndTheSampleOfTheTokenizerCanBeChosen) {
  const auto label = [&](const char* out, const std::vector<std::string>& more) {
    const Outcome made =
        Tokenize(out, std::vector<std::string>{"--train-tokenizer", "320", "-o", "json"} + more);
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return json::parse(made.out)["tokenizer"].get<std::string>();
  };
  const std::string bpe = label("a", {});
  EXPECT_EQ(label("b", {"--tokenizer-type", "bpe"}), bpe);
  EXPECT_NE(label("c", {"--tokenizer-type", "unigram"}), bpe);
  EXPECT_NE(label("d", {"--sample-bytes", "20000"}), bpe);
}

TEST_F(DataCommandTest, SplitRulesDecideWhatADocumentIs) {
  const auto documents = [&](const char* out, const std::vector<std::string>& more) {
    const Outcome made =
        Tokenize(out, std::vector<std::string>{"--validation-fraction", "0", "-o", "json"} + more);
    EXPECT_EQ(made.exit_code, 0) << made.err;
    const json report = json::parse(made.out);
    EXPECT_TRUE(report["validation"].is_null());
    return report["train"]["documents"].get<int64_t>();
  };
  EXPECT_EQ(documents("a", {"--split", "file"}), 4);
  EXPECT_GT(documents("b", {"--split", "paragraphs", "--min-bytes", "100"}), 4);
  WriteFile(Path("in/5.txt"), "one\n%%\ntwo\n%%\n");
  EXPECT_EQ(documents("c", {"--split", "line", "--delimiter", "%%"}), 6);
}

TEST_F(DataCommandTest, ExistingShardsAreReplacedOnlyOnRequestAndCheckedBeforeTraining) {
  ASSERT_EQ(Tokenize("out").exit_code, 0);
  const std::string before = Contents(Path("out/train.tokens"));
  const Outcome again = Tokenize("out", {"--train-tokenizer", "400"});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.out, IsEmpty());
  EXPECT_THAT(again.err, AllOf(HasSubstr("nibble data tokenize: "),
                               HasSubstr("may not be replaced"), Not(HasSubstr("training"))));
  EXPECT_EQ(Contents(Path("out/train.tokens")), before);
  EXPECT_EQ(Tokenize("out", {"--train-tokenizer", "400", "--overwrite"}).exit_code, 0);
  EXPECT_NE(Contents(Path("out/train.tokens")), before);
}

TEST_F(DataCommandTest, ErrorsGoToStderrWithTheirExitCode) {
  const Outcome absent = Nibble({"tokenize", Path("absent"), "--output-dir", Path("out")});
  EXPECT_EQ(absent.exit_code, 102);
  EXPECT_THAT(absent.out, IsEmpty());
  EXPECT_THAT(absent.err, AllOf(HasSubstr("nibble data tokenize: "), HasSubstr(Path("absent"))));
  EXPECT_EQ(Tokenize("out", {"--tokenizer", Path("absent.model")}).exit_code, 102);

  const Outcome no_model = Tokenize("out", {"--tokenizer", Path("in/0.txt")});
  EXPECT_EQ(no_model.exit_code, 1);
  EXPECT_THAT(no_model.err, HasSubstr(Path("in/0.txt")));
  const Outcome large = Tokenize("out", {"--train-tokenizer", "1000000"});
  EXPECT_EQ(large.exit_code, 1);
  EXPECT_THAT(large.err, HasSubstr("<="));
  const Outcome delimiter = Tokenize("out", {"--split", "line"});
  EXPECT_EQ(delimiter.exit_code, 1);
  EXPECT_THAT(delimiter.err, HasSubstr("delimiter"));
}

TEST_F(DataCommandTest, AnErrorLeavesNoShard) {
  WriteFile(Path("in/9.txt"), "caf\xe9\n");
  const Outcome failed = Tokenize("out", {"--tokenizer", Path("m.model")});
  EXPECT_EQ(failed.exit_code, 102);
  WriteFile(Path("m.model"), TestModel());
  const Outcome latin = Tokenize("out", {"--tokenizer", Path("m.model")});
  EXPECT_EQ(latin.exit_code, 1);
  EXPECT_THAT(latin.out, IsEmpty());
  EXPECT_THAT(latin.err, AllOf(HasSubstr(Path("in/9.txt")), HasSubstr("0xe9")));
  for (const auto& entry : std::filesystem::directory_iterator(Path("out"))) {
    EXPECT_EQ(entry.path().extension(), ".model") << entry.path();
  }
}

TEST_F(DataCommandTest, MisuseIsAUsageError) {
  EXPECT_EQ(Nibble({}).exit_code, 2);
  EXPECT_EQ(Nibble({"tokenize"}).exit_code, 2);
  EXPECT_EQ(Nibble({"tokenize", Path("in")}).exit_code, 2);
  EXPECT_EQ(Tokenize("out", {"--split", "words"}).exit_code, 2);
  EXPECT_EQ(Tokenize("out", {"--threads", "-1"}).exit_code, 2);
  EXPECT_THAT(Tokenize("out", {"--validation-fraction", "nan"}).err,
              HasSubstr("'nan'; allowed: numbers, 0 to below 1"));
  EXPECT_EQ(Tokenize("out", {"--validation-fraction", "1"}).exit_code, 2);
  EXPECT_EQ(Tokenize("out", {"--train-tokenizer", "100"}).exit_code, 2);
  EXPECT_EQ(Tokenize("out", {"--tokenizer", "m", "--train-tokenizer", "400"}).exit_code, 2);
  EXPECT_EQ(Tokenize("out", {"--tokenizer-type", "bpe"}).exit_code, 2);
  EXPECT_EQ(Tokenize("out", {"-o", "xml"}).exit_code, 2);
  EXPECT_EQ(Nibble({"inspect"}).exit_code, 2);
  EXPECT_EQ(Nibble({"inspect", "f", "--text"}).exit_code, 2);
  EXPECT_EQ(Nibble({"inspect", "f", "--token-width", "3"}).exit_code, 2);
  EXPECT_EQ(Nibble({"inspect", "f", "--mark-begins"}).exit_code, 2);
  EXPECT_EQ(Nibble({"verify"}).exit_code, 2);
  EXPECT_EQ(Nibble({"--help"}).exit_code, 0);
  EXPECT_EQ(Nibble({"tokenize", "--help"}).exit_code, 0);
}

TEST_F(DataCommandTest, InspectDescribesAShard) {
  ASSERT_EQ(Tokenize("out", {"--split", "file", "--validation-fraction", "0"}).exit_code, 0);
  const Outcome table = Nibble({"inspect", Path("out/train.tokens")});
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.err, IsEmpty());
  for (const char* part : {"token shard, version 1", "bytes\n", "257\n", "2 bytes\n", "256\n",
                           "documents         4\n"}) {
    EXPECT_THAT(table.out, HasSubstr(part));
  }
  EXPECT_THAT(table.out, Not(HasSubstr("document 0")));

  const json report = json::parse(Nibble({"inspect", Path("out/train.tokens"), "-o", "json"}).out);
  EXPECT_EQ(report["documents"], 4);
  EXPECT_EQ(report["end_of_document"], 256);
  EXPECT_FALSE(report.contains("shown"));
  const int64_t total = report["tokens"];
  EXPECT_DOUBLE_EQ(report["document_tokens"]["mean"], static_cast<double>(total) / 4);
  EXPECT_LE(report["document_tokens"]["min"], total / 4);
  EXPECT_GE(report["document_tokens"]["max"], total / 4);
}

TEST_F(DataCommandTest, InspectShowsDocumentsAsTokensOrText) {
  WriteFile(Path("in/0.txt"), "first\n");
  ASSERT_EQ(Tokenize("out", {"--split", "file", "--validation-fraction", "0"}).exit_code, 0);
  const std::string shard = Path("out/train.tokens");
  const Outcome numbers = Nibble({"inspect", shard, "--documents", "1"});
  EXPECT_THAT(numbers.out,
              HasSubstr("\ndocument 0: 7 tokens from token 0\n102 105 114 115 116 10 256\n"));
  const Outcome text = Nibble({"inspect", shard, "--documents", "1", "--text"});
  EXPECT_THAT(text.out, HasSubstr("\ndocument 0: 7 tokens from token 0\nfirst\n"));

  const json report = json::parse(Nibble({"inspect", shard, "--documents", "9", "--from", "1",
                                          "--max-tokens", "5", "--text", "-o", "json"})
                                      .out);
  ASSERT_EQ(report["shown"].size(), 3u);
  EXPECT_EQ(report["shown"][0]["document"], 1);
  EXPECT_EQ(report["shown"][0]["begin"], 7);
  EXPECT_EQ(report["shown"][0]["first_tokens"].size(), 5u);
  EXPECT_EQ(report["shown"][0]["text"], TestText(1, 300).substr(0, 5));

  const Outcome beyond = Nibble({"inspect", shard, "--documents", "1", "--from", "4"});
  EXPECT_EQ(beyond.exit_code, 1);
  EXPECT_THAT(beyond.err, HasSubstr("document 4 is not in [0, 4)"));
}

TEST_F(DataCommandTest, InspectDecodesWithTheModelBesideTheShardOrAnEqualOne) {
  WriteFile(Path("m.model"), TestModel());
  ASSERT_EQ(Tokenize("out", {"--tokenizer", Path("m.model"), "--split", "file",
                             "--validation-fraction", "0"})
                .exit_code,
            0);
  const std::vector<std::string> inspect = {"inspect",      Path("out/train.tokens"),
                                            "--documents",  "1",
                                            "--max-tokens", "100000",
                                            "--text",       "-o",
                                            "json"};
  const auto text = [&](const std::vector<std::string>& more) {
    const Outcome shown = Nibble(inspect + more);
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    return json::parse(shown.out)["shown"][0]["text"].get<std::string>();
  };
  EXPECT_EQ(text({}), TestText(0, 300));
  for (const auto& entry : std::filesystem::directory_iterator(Path("out"))) {
    if (entry.path().extension() == ".model") std::filesystem::remove(entry.path());
  }
  const Outcome lost = Nibble(inspect);
  EXPECT_EQ(lost.exit_code, 102);
  EXPECT_THAT(lost.err, HasSubstr(".model"));
  EXPECT_EQ(text({"--tokenizer", Path("m.model")}), TestText(0, 300));
  WriteFile(Path("other.model"), TestModel(SentencePieceType::kUnigram));
  const Outcome other =
      Nibble(inspect + std::vector<std::string>{"--tokenizer", Path("other.model")});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, HasSubstr("was made with"));
}

TEST_F(DataCommandTest, FilesOfOtherTrainersNeedHints) {
  const std::string bare = Path("bare.bin");
  WriteFile(bare, std::string("\1\0\2\0\7\0\3\0\7\0", 10));
  const Outcome refused = Nibble({"inspect", bare});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("width"));

  const json unknown =
      json::parse(Nibble({"inspect", bare, "--token-width", "2", "-o", "json"}).out);
  EXPECT_TRUE(unknown["tokenizer"].is_null());
  EXPECT_TRUE(unknown["vocabulary"].is_null());
  EXPECT_EQ(unknown["documents"], 1);
  const json marked = json::parse(
      Nibble({"inspect", bare, "--token-width", "2", "--tokenizer-label", "gpt2", "--vocabulary",
              "8", "--document-mark", "7", "--documents", "5", "-o", "json"})
          .out);
  EXPECT_EQ(marked["tokenizer"], "gpt2");
  EXPECT_EQ(marked["end_of_document"], 7);
  ASSERT_EQ(marked["shown"].size(), 2u);
  EXPECT_EQ(marked["shown"][1]["first_tokens"], json::parse("[3, 7]"));
  const json begun = json::parse(Nibble({"inspect", bare, "--token-width", "2", "--document-mark",
                                         "7", "--mark-begins", "-o", "json"})
                                     .out);
  EXPECT_EQ(begun["documents"], 3);

  const Outcome blind = Nibble({"verify", bare, "--token-width", "2"});
  EXPECT_EQ(blind.exit_code, 0);
  EXPECT_THAT(blind.err, HasSubstr("does not state its vocabulary"));
  EXPECT_EQ(Nibble({"verify", bare, "--token-width", "2", "--vocabulary", "8"}).exit_code, 0);
  const Outcome small = Nibble({"verify", bare, "--token-width", "2", "--vocabulary", "7"});
  EXPECT_EQ(small.exit_code, 1);
  EXPECT_THAT(small.err, HasSubstr("token 7 at position 2"));
}

TEST_F(DataCommandTest, YamlHasTheContentOfJson) {
  const auto same = [](const std::vector<std::string>& arguments) {
    const Outcome json = Nibble(arguments + std::vector<std::string>{"-o", "json"});
    const Outcome yaml = Nibble(arguments + std::vector<std::string>{"-o", "yaml"});
    EXPECT_EQ(json.exit_code, 0) << json.err;
    EXPECT_EQ(yaml.exit_code, 0) << yaml.err;
    EXPECT_NE(yaml.out, json.out);
    EXPECT_EQ(JsonOfYaml(yaml.out), nlohmann::ordered_json::parse(json.out));
  };
  same({"tokenize", Path("in"), "--extension", ".txt", "--output-dir", Path("out"), "--overwrite"});
  same({"inspect", Path("out/train.tokens"), "--documents", "2", "--text"});
  same({"verify", Path("out/train.tokens"), Path("out/validation.tokens")});
}

TEST_F(DataCommandTest, VerifyFindsOneDamagedByteAmongValidFiles) {
  ASSERT_EQ(Tokenize("out").exit_code, 0);
  const std::string train = Path("out/train.tokens"), validation = Path("out/validation.tokens");
  const Outcome sound = Nibble({"verify", train, validation});
  EXPECT_EQ(sound.exit_code, 0);
  EXPECT_THAT(sound.err, IsEmpty());
  EXPECT_THAT(sound.out, AllOf(HasSubstr("ok      " + train), HasSubstr("ok      " + validation)));

  std::string bytes = Contents(train);
  bytes[bytes.size() / 2] ^= 1;
  WriteFile(train, bytes);
  const Outcome damaged = Nibble({"verify", train, validation, Path("absent")});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.out, AllOf(HasSubstr("failed  " + train), HasSubstr("ok      " + validation),
                                 HasSubstr("failed  " + Path("absent"))));
  EXPECT_THAT(damaged.err, AllOf(HasSubstr(train + ": chunk_crc"), HasSubstr(Path("absent"))));
  const Outcome table = Nibble({"verify", train, validation, "-o", "json"});
  EXPECT_EQ(table.exit_code, 1);
  const json report = json::parse(table.out);
  EXPECT_EQ(report[0]["ok"], false);
  EXPECT_THAT(report[0]["error"].get<std::string>(), HasSubstr("chunk_crc"));
  EXPECT_EQ(report[1]["ok"], true);
  EXPECT_EQ(Nibble({"verify", Path("absent")}).exit_code, 102);
}

}  // namespace
}  // namespace nibble
