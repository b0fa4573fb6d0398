#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/infer/eval/multiple_choice.h"
#include "worker/infer/infer_testing.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/sentencepiece.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Refusal(const std::string& line) {
  const auto question = ParseChoiceQuestion(line);
  EXPECT_FALSE(question.ok()) << line;
  return std::string(question.status().message());
}

TEST(ChoiceFile, QuestionFieldsHaveAliases) {
  const auto a = ParseChoiceQuestion(
      R"({"id": "q7", "context": "The sky is", "choices": ["blue", "green"], "gold": 1, "x": 2})");
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->id, "q7");
  EXPECT_EQ(a->context, "The sky is");
  EXPECT_EQ(a->choices, (std::vector<std::string>{"blue", "green"}));
  EXPECT_EQ(a->gold, 1);
  const auto b = ParseChoiceQuestion(R"({"query": "", "choices": ["z"], "label": 0, "id": 12})");
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ(b->id, "12");
  EXPECT_EQ(b->context, "");
}

TEST(ChoiceFile, ErrorsNameTheField) {
  EXPECT_THAT(Refusal("not json"), HasSubstr("is not JSON"));
  EXPECT_THAT(Refusal("[1]"), HasSubstr("is array, not an object"));
  EXPECT_THAT(Refusal(R"({"choices": ["a"], "gold": 0})"), HasSubstr("context: missing"));
  EXPECT_THAT(Refusal(R"({"context": "a", "query": "b", "choices": ["a"], "gold": 0})"),
              HasSubstr("query: an alias of context, which the question also has"));
  EXPECT_THAT(Refusal(R"({"query": 3, "choices": ["a"], "gold": 0})"),
              HasSubstr("query: is number, not a string"));
  EXPECT_THAT(Refusal(R"({"context": "a", "gold": 0})"), HasSubstr("choices: missing"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": "b", "gold": 0})"),
              HasSubstr("choices: is string, not an array"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": [], "gold": 0})"),
              HasSubstr("choices: 0 of them"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b", 1], "gold": 0})"),
              HasSubstr("choices[1]: is number, not a string"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b", ""], "gold": 0})"),
              HasSubstr("choices[1]: is empty"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"]})"), HasSubstr("gold: missing"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "gold": 1})"),
              HasSubstr("gold: 1 is not in [0, 1), the choices"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "gold": [[1], ")" +
                      std::string(1000, 'x') + R"("]})"),
              AllOf(HasSubstr("gold: [[1],\"xxx"), HasSubstr("... is not a whole number")));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "gold": )" + std::string(1 << 20, '[') +
                      std::string(1 << 20, ']') + "}"),
              HasSubstr("nested deeper than 64"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "label": -1})"),
              HasSubstr("label: -1 is not in [0, 1)"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "label": 18446744073709551615})"),
              HasSubstr("label: 18446744073709551615 is not in"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "gold": 0.5})"),
              HasSubstr("gold: 0.5 is not a whole number"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "gold": true})"),
              HasSubstr("gold: true is not a whole number"));
  EXPECT_THAT(Refusal(R"({"context": "a", "choices": ["b"], "gold": 0, "id": []})"),
              HasSubstr("id: is array"));
  EXPECT_THAT(Refusal("{\"context\": \"\xff\"}"), HasSubstr("byte 13, 0xff, is not UTF-8"));
}

TEST(ChoiceFile, LinesAreNumberedAndEmptyOnesSkipped) {
  const TempDirectory directory;
  const std::string path = directory.Path("q.jsonl");
  WriteFile(path,
            "{\"context\": \"a\", \"choices\": [\"b\"], \"gold\": 0}\n"
            "\n"
            "{\"context\": \"c\", \"choices\": [\"d\"], \"gold\": 0}\r\n"
            "{\"context\": \"e\", \"choices\": [\"f\"], \"gold\": 9}");
  auto reader = ChoiceReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((**reader->Next()).line, 1);
  EXPECT_EQ((**reader->Next()).line, 3);
  EXPECT_THAT(std::string(reader->Next().status().message()), HasSubstr(path + ":4: gold: 9"));
}

TEST(ChoiceFile, LastLineNeedsNoNewline) {
  const TempDirectory directory;
  WriteFile(directory.Path("q"), R"({"context": "a", "choices": ["b"], "gold": 0})");
  auto reader = ChoiceReader::Open(directory.Path("q"));
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE((*reader->Next()).has_value());
  EXPECT_FALSE((*reader->Next()).has_value());
}

TEST(ChoiceFile, HugeLineIsRefusedWithItsNumber) {
  const TempDirectory directory;
  const std::string path = directory.Path("q.jsonl");
  WriteFile(path, "\n" + std::string(kMaxChoiceLine + 1, ' '));
  auto reader = ChoiceReader::Open(path);
  ASSERT_TRUE(reader.ok());
  EXPECT_THAT(std::string(reader->Next().status().message()),
              HasSubstr(":2: the line has more than 16777216 bytes"));
}

TEST(ChoiceFile, MissingFileIsNotFound) {
  const TempDirectory directory;
  EXPECT_EQ(ChoiceReader::Open(directory.Path("none")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ChoiceReader::Open(directory.path()).status().message()),
              HasSubstr("is a directory"));
}

using ::testing::HasSubstr;

std::vector<int32_t> Bytes(const std::string& text) {
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// ln p(choice | context), all tokens in one run.
double Direct(Decoder& decoder, std::vector<int32_t> text, const std::vector<int32_t>& choice) {
  const size_t context = text.size();
  text.insert(text.end(), choice.begin(), choice.end());
  auto sequence = *decoder.NewSequence(static_cast<int64_t>(text.size()));
  const auto vocab = static_cast<size_t>(decoder.vocab());
  const std::vector<float> logits = AllLogits(decoder, *sequence, text);
  double score = 0;
  for (size_t i = 0; i < choice.size(); ++i) {
    const float* row = logits.data() + (context + i - 1) * vocab;
    double sum = 0;
    for (size_t v = 0; v < vocab; ++v) sum += std::exp(double{row[v]});
    score += row[choice[i]] - std::log(sum);
  }
  return score;
}

class MultipleChoiceTest : public testing::TestWithParam<const char*> {
 protected:
  TestWeights weights{*ModelPreset(GetParam())};
  std::unique_ptr<Decoder> decoder =
      MustCreate(weights, {.precision = DType::kF32, .threads = 2, .max_sequence = 300});
  ByteTokenizer tokenizer;
};

TEST_P(MultipleChoiceTest, ScoresMatchRunningEachTextWhole) {
  const std::vector<ChoiceTokens> questions = {
      {Bytes("What is it?"), {Bytes(" a"), Bytes(" tree"), Bytes("x")}},
      {Bytes("z"), {Bytes(" one"), Bytes(" two and three")}},
      {{256}, {Bytes("q")}}};
  const auto scores = ScoreChoices(*decoder, questions);
  ASSERT_TRUE(scores.ok()) << scores.status();
  ASSERT_EQ(scores->size(), 3u);
  for (size_t q = 0; q < 3; ++q) {
    ASSERT_EQ((*scores)[q].size(), questions[q].choices.size());
    for (size_t c = 0; c < questions[q].choices.size(); ++c) {
      EXPECT_NEAR((*scores)[q][c], Direct(*decoder, questions[q].context, questions[q].choices[c]),
                  1e-3)
          << q << " " << c;
    }
  }
}

TEST_P(MultipleChoiceTest, AnswersAreTheLikeliestChoices) {
  const TempDirectory directory;
  const std::string path = directory.Path("q.jsonl");
  std::string text;
  for (int i = 0; i < 30; ++i) {
    text += "{\"id\": " + std::to_string(i) + ", \"context\": \"question number " +
            std::to_string(i) + ":\", \"choices\": [\"yes\", \"no, never\", \"maybe\"], " +
            "\"gold\": " + std::to_string(i % 3) + "}\n";
  }
  WriteFile(path, text);
  const auto answers = AnswerFile(*decoder, tokenizer, path, {});
  ASSERT_TRUE(answers.ok()) << answers.status();
  ASSERT_EQ(answers->size(), 30u);
  const std::vector<std::string> choices = {"yes", "no, never", "maybe"};
  for (int i = 0; i < 30; i += 7) {
    const Answer& answer = (*answers)[i];
    EXPECT_EQ(answer.id, std::to_string(i));
    EXPECT_EQ(answer.line, i + 1);
    std::vector<double> scores, per_byte;
    for (const std::string& choice : choices) {
      scores.push_back(Direct(*decoder, Bytes("question number " + std::to_string(i) + ":"),
                              Bytes(" " + choice)));
      per_byte.push_back(scores.back() / static_cast<double>(choice.size()));
    }
    for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(answer.log_likelihoods[c], scores[c], 1e-3);
    EXPECT_EQ(answer.chosen, std::max_element(scores.begin(), scores.end()) - scores.begin());
    EXPECT_EQ(answer.chosen_norm,
              std::max_element(per_byte.begin(), per_byte.end()) - per_byte.begin());
  }
  const auto some = AnswerFile(*decoder, tokenizer, path, {.max_questions = 4});
  ASSERT_TRUE(some.ok());
  EXPECT_EQ(some->size(), 4u);
}

INSTANTIATE_TEST_SUITE_P(Models, MultipleChoiceTest, testing::Values("tiny-hybrid", "tiny-llama"),
                         [](const auto& info) {
                           return std::string(info.param) == "tiny-llama" ? "llama" : "hybrid";
                         });

TEST(MultipleChoice, TrailingSpacesOfTheContextAreScoredWithTheChoice) {
  const ByteTokenizer tokenizer;
  const auto tokens =
      TokenizeQuestion(tokenizer, {.context = "ab  ", .choices = {"c"}, .gold = 0}, " ");
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokens->context, Bytes("ab"));
  EXPECT_EQ(tokens->choices[0], Bytes("   c"));
  const auto empty = TokenizeQuestion(tokenizer, {.context = "", .choices = {"c"}}, "");
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->context, (std::vector<int32_t>{tokenizer.end_of_document()}));
  EXPECT_EQ(empty->choices[0], Bytes("c"));
}

TEST(MultipleChoice, ContextAndChoiceAreTokenizedAsOneText) {
  const auto tokenizer = SentencePieceTokenizer::FromModel("test", TestModel());
  ASSERT_TRUE(tokenizer.ok());
  const auto tokens = TokenizeQuestion(
      **tokenizer, {.context = "the moren tali", .choices = {"be no", "vel"}}, " ");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  for (size_t c = 0; c < 2; ++c) {
    std::vector<int32_t> all = tokens->context;
    all.insert(all.end(), tokens->choices[c].begin(), tokens->choices[c].end());
    EXPECT_EQ(*(*tokenizer)->Decode(all), c == 0 ? "the moren tali be no" : "the moren tali vel");
  }
}

TEST(MultipleChoice, SummaryHasMeansAndStandardErrors) {
  std::vector<Answer> answers(10);
  for (size_t i = 0; i < 10; ++i) {
    answers[i] = {.gold = 1, .chosen = i < 6 ? 1 : 0, .chosen_norm = i < 9 ? 1 : 0};
  }
  const ChoiceScore score = Summarize(answers);
  EXPECT_EQ(score.questions, 10);
  EXPECT_DOUBLE_EQ(score.accuracy, 0.6);
  EXPECT_DOUBLE_EQ(score.accuracy_norm, 0.9);
  EXPECT_DOUBLE_EQ(*score.standard_error, std::sqrt(0.6 * 0.4 / 9));
  EXPECT_DOUBLE_EQ(*score.standard_error_norm, std::sqrt(0.9 * 0.1 / 9));
  EXPECT_FALSE(Summarize({answers.data(), 1}).standard_error.has_value());
}

TEST(MultipleChoice, ErrorsNameFileLineAndField) {
  TestWeights weights(*ModelPreset("tiny-gpt2"));
  const auto decoder = MustCreate(weights, {.threads = 1, .max_sequence = 20});
  const ByteTokenizer tokenizer;
  const TempDirectory directory;
  const std::string path = directory.Path("q.jsonl");
  const auto message = [&](const std::string& text) {
    WriteFile(path, text);
    return std::string(AnswerFile(*decoder, tokenizer, path, {}).status().message());
  };
  const std::string good = "{\"context\": \"a\", \"choices\": [\"b\"], \"gold\": 0}\n";
  EXPECT_THAT(message(good + "{}"), HasSubstr(path + ":2: context: missing"));
  EXPECT_THAT(message(good + "{\"context\": \"a\", \"choices\": [\"b\", \"" + std::string(30, 'c') +
                      "\"], \"gold\": 0}\n"),
              HasSubstr(path + ":2: choices[1]: a sequence of 31 tokens is over max_sequence, 20"));
  EXPECT_THAT(message(""), HasSubstr("no questions"));
}

TEST(MultipleChoice, NonFiniteLogitsAreAnError) {
  TestWeights weights(*ModelPreset("tiny-gpt2"));
  weights.values("final_norm.bias")[0] = NAN;
  const auto decoder = MustCreate(weights, {.threads = 1, .max_sequence = 20});
  const TempDirectory directory;
  WriteFile(directory.Path("q"), "{\"context\": \"a\", \"choices\": [\"b\"], \"gold\": 0}\n");
  const absl::Status status =
      AnswerFile(*decoder, ByteTokenizer(), directory.Path("q"), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(":1: choices[0]: its log-likelihood is"));
}

}  // namespace
}  // namespace nibble
