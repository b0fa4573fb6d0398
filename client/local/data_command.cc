#include "client/local/local_commands.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/local/data_files.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/text_corpus.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {
namespace {

const std::map<std::string, SplitRule> kSplitRules = {
    {"file", SplitRule::kFile}, {"paragraphs", SplitRule::kParagraphs}, {"line", SplitRule::kLine}};
const std::map<std::string, SentencePieceType> kTokenizerTypes = {
    {"bpe", SentencePieceType::kBpe}, {"unigram", SentencePieceType::kUnigram}};

template <class T>
std::vector<std::string> Names(const std::map<std::string, T>& named) {
  std::vector<std::string> names;
  for (const auto& [name, value] : named) names.push_back(name);
  return names;
}

// The variables of the options, as texts where the request has enums.
struct TokenizeFlags {
  TokenizeRequest request;
  std::string split = "paragraphs";
  std::string type = "bpe";
  std::string print = "table";
};
struct HintFlags {
  TokenHints hints;
  int32_t mark = -1;  // none
  bool mark_begins = false;

  TokenHints Hints() const {
    TokenHints told = hints;
    if (mark >= 0) {
      told.document_mark = DocumentMark{
          .token = mark,
          .place = mark_begins ? DocumentMark::Place::kBegins : DocumentMark::Place::kEnds};
    }
    return told;
  }
};
struct InspectFlags {
  InspectRequest request;
  HintFlags hints;
  std::string print = "table";
};
struct VerifyFlags {
  VerifyRequest request;
  HintFlags hints;
  std::string print = "table";
};

void AddHints(Command command, HintFlags& flags) {
  const char* const kGroup = "Files of other trainers, which do not say";
  command.Add("--tokenizer-label", flags.hints.tokenizer, "what made the tokens: gpt2, say")
      .Group(kGroup);
  command.Add("--vocabulary", flags.hints.vocabulary, "tokens are below it: 50257, say")
      .WholeNumber(int64_t{1}, int64_t{1} << 31)
      .Group(kGroup);
  command
      .Add("--token-width", flags.hints.token_width,
           "bytes per token of a file of nothing but tokens: 2 or 4")
      .OneOfNumbers({2, 4})
      .Group(kGroup);
  Option mark = command.Add("--document-mark", flags.mark, "token that ends every document")
                    .AtLeast(0)
                    .Group(kGroup);
  command.AddFlag("--mark-begins", flags.mark_begins, "it begins every document instead")
      .Needs(mark)
      .Group(kGroup);
}

void AddTokenize(Command data, int& exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  TokenizeRequest& request = flags->request;
  request.text.validation_fraction = 0.05;
  request.text.threads = 0;
  Command command = data.AddSubcommand(
      "tokenize", "Make token shards of text files: one to train on, one to validate on");
  command
      .Add("INPUT", request.text.inputs,
           "text files, .jsonl files (see --text-field), either with .gz or .zst, and "
           "directories of such")
      .Required();
  command
      .Add("--output-dir", request.text.output_dir,
           "where train.tokens and validation.tokens go; made if need be")
      .Required();
  Option model = command.Add(
      "--tokenizer", request.tokenizer,
      "a SentencePiece .model or a Hugging Face tokenizer.json; without it tokens are bytes");
  Option train =
      command
          .Add("--train-tokenizer", request.training.vocabulary,
               "train a SentencePiece model of so many pieces on the text first")
          .WholeNumber(SentencePieceTraining::kMinVocabulary, SentencePieceTraining::kMaxVocabulary)
          .Excludes(model);
  command.Add("--tokenizer-type", flags->type, "of the model to train: bpe or unigram")
      .OneOf(Names(kTokenizerTypes))
      .Needs(train)
      .ShowDefault();
  command
      .Add("--sample-bytes", request.sample_bytes,
           "of text to train it on, drawn by lines where there is more")
      .AtLeast(1)
      .Needs(train)
      .ShowDefault();
  command
      .Add("--split", flags->split,
           "what is a document: a file, paragraphs, or what lies between lines that are "
           "the delimiter (line)")
      .OneOf(Names(kSplitRules))
      .ShowDefault();
  command
      .Add("--min-bytes", request.text.split.min_bytes,
           "of a document of paragraphs, unless its file is shorter")
      .AtLeast(1)
      .ShowDefault();
  command.Add("--delimiter", request.text.split.delimiter, "of documents split by line");
  command
      .Add("--text-field", request.text.split.text_field,
           "the field of each line's object that holds the document, in .jsonl files")
      .ShowDefault();
  command
      .Add("--extension", request.text.extensions,
           "of a directory only files whose names end so, e.g. .txt; none: all")
      .OneValueEach();
  command
      .Add("--validation-fraction", request.text.validation_fraction,
           "share of the documents that is held out, in [0, 1)")
      .ShowDefault();
  command.Add("--seed", request.text.seed, "of which documents are held out").ShowDefault();
  command
      .Add("--threads", request.text.threads,
           "that tokenize; 0: one per processor. They change no byte of the shards")
      .WholeNumber(0, 1024)
      .ShowDefault();
  command.AddFlag("--overwrite", request.text.overwrite, "replace shards that are there");
  command.Footer("Example: nibble data tokenize texts --output-dir tokens --train-tokenizer 4096");
  AddOutputOption(command, flags->print);
  command.OnParsed([flags, &exit_code] {
    flags->request.text.split.rule = kSplitRules.at(flags->split);
    flags->request.training.type = kTokenizerTypes.at(flags->type);
    flags->request.json = ForPrograms(flags->print);
    const auto say = [](std::string_view line) { Tell("data tokenize", line); };
    exit_code = Finish("data tokenize", InFormat(flags->print, RunTokenize(flags->request, say)));
  });
}

void AddInspect(Command data, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  InspectRequest& request = flags->request;
  Command command = data.AddSubcommand(
      "inspect", "What a token file holds: a shard, a GPT-2 trainer's .bin, a Megatron .idx");
  command.Add("FILE", request.file, "the token file").Required();
  command.Footer("Example: nibble data inspect tokens/train.tokens --documents 2 --text");
  Option documents =
      command.Add("--documents", request.documents, "show so many documents").AtLeast(0);
  command.Add("--from", request.first_document, "from this one on")
      .AtLeast(0)
      .Needs(documents)
      .ShowDefault();
  command.Add("--max-tokens", request.max_tokens, "of each document at most so many")
      .AtLeast(1)
      .Needs(documents)
      .ShowDefault();
  Option text =
      command.AddFlag("--text", request.text, "as text instead of numbers").Needs(documents);
  command
      .Add("--tokenizer", request.tokenizer,
           "the .model or tokenizer.json for that; without it the one beside FILE that FILE names")
      .Needs(text);
  AddHints(command, flags->hints);
  AddOutputOption(command, flags->print);
  command.OnParsed([flags, &exit_code] {
    flags->request.hints = flags->hints.Hints();
    flags->request.json = ForPrograms(flags->print);
    exit_code = Finish("data inspect", InFormat(flags->print, RunInspect(flags->request)));
  });
}

void AddVerify(Command data, int& exit_code) {
  auto flags = std::make_shared<VerifyFlags>();
  Command command =
      data.AddSubcommand("verify", "Check every byte of token files that can be checked");
  command.Add("FILE", flags->request.files, "token files").Required();
  AddHints(command, flags->hints);
  AddOutputOption(command, flags->print);
  command.OnParsed([flags, &exit_code] {
    flags->request.hints = flags->hints.Hints();
    flags->request.json = ForPrograms(flags->print);
    const auto say = [](std::string_view line) { Tell("data verify", line); };
    const Verified verified = RunVerify(flags->request, say);
    exit_code = Finish("data verify", InFormat(flags->print, verified.output));
    for (const absl::Status& error : verified.errors) say(std::string(error.message()));
    if (!verified.errors.empty()) exit_code = ExitCodeOf(verified.errors.front());
  });
}

}  // namespace

void AddDataCommand(Command app, int& exit_code) {
  Command data = app.AddSubcommand("data", "Token shards: make them, look into them");
  data.RequireSubcommand();
  AddTokenize(data, exit_code);
  AddInspect(data, exit_code);
  AddVerify(data, exit_code);
}

}  // namespace nibble
