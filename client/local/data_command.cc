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
#include "worker/corpus/text_corpus.h"
#include "worker/trainer/data/sentencepiece_training.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {
namespace {

const std::map<std::string, SplitRule> kSplitRules = {
    {"file", SplitRule::kFile}, {"paragraphs", SplitRule::kParagraphs}, {"line", SplitRule::kLine}};
const std::map<std::string, ControlRule> kControlRules = {
    {"skip", ControlRule::kSkip}, {"keep", ControlRule::kKeep}, {"refuse", ControlRule::kRefuse}};
const std::map<std::string, SentencePieceType> kTokenizerTypes = {
    {"bpe", SentencePieceType::kBpe}, {"unigram", SentencePieceType::kUnigram}};

template <class T>
std::vector<std::string> Names(const std::map<std::string, T>& named) {
  std::vector<std::string> names;
  for (const auto& [name, value] : named) names.push_back(name);
  return names;
}

// The variables of the options: texts for the enums of a request.
struct TokenizeFlags {
  TokenizeRequest request;
  std::string split = "paragraphs";
  std::string type = "bpe";
  std::string control = "skip";
  std::string print = "table";
};
struct HintFlags {
  TokenHints hints;
  int32_t mark = -1;  // none
  bool mark_begins = false;

  TokenHints Hints() const {
    TokenHints result = hints;
    if (mark >= 0) {
      result.document_mark = DocumentMark{
          .token = mark,
          .place = mark_begins ? DocumentMark::Place::kBegins : DocumentMark::Place::kEnds};
    }
    return result;
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
  const char* const kGroup = "Files of other trainers, which do not state these";
  command.Add("--tokenizer-label", flags.hints.tokenizer, "name of their tokenizer, such as gpt2")
      .Group(kGroup);
  command.Add("--vocabulary", flags.hints.vocabulary, "size of their vocabulary, such as 50257")
      .WholeNumber(int64_t{1}, int64_t{1} << 31)
      .Group(kGroup);
  command
      .Add("--token-width", flags.hints.token_width,
           "bytes per token of a file without a header: 2 or 4")
      .OneOfNumbers({2, 4})
      .Group(kGroup);
  Option mark = command.Add("--document-mark", flags.mark, "token that ends every document")
                    .AtLeast(0)
                    .Group(kGroup);
  command
      .AddFlag("--mark-begins", flags.mark_begins,
               "the document mark begins every document instead")
      .Needs(mark)
      .Group(kGroup);
}

void AddTokenize(Command data, int& exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  TokenizeRequest& request = flags->request;
  request.text.validation_fraction = 0.05;
  request.text.threads = 0;
  Command command = data.AddSubcommand(
      "tokenize", "Make token shards from text: one for training, one for validation");
  command
      .Add("INPUT", request.text.inputs,
           "text files, .jsonl files (see --text-field), either compressed as .gz or .zst, or "
           "directories of them")
      .Required();
  command
      .Add("--output-dir", request.text.output_dir,
           "directory of train.tokens and validation.tokens; created if needed")
      .Required();
  Option model = command.Add(
      "--tokenizer", request.tokenizer,
      "a SentencePiece .model or a Hugging Face tokenizer.json; default: tokens are bytes");
  Option train =
      command
          .Add("--train-tokenizer", request.training.vocabulary,
               "first train a SentencePiece model of N pieces on the text")
          .WholeNumber(SentencePieceTraining::kMinVocabulary, SentencePieceTraining::kMaxVocabulary)
          .Excludes(model);
  command.Add("--tokenizer-type", flags->type, "type of the model to train: bpe or unigram")
      .OneOf(Names(kTokenizerTypes))
      .Needs(train)
      .ShowDefault();
  command
      .Add("--sample-bytes", request.sample_bytes,
           "bytes of text to train it on; of more text, a sample of lines")
      .AtLeast(1)
      .Needs(train)
      .ShowDefault();
  command
      .Add("--split", flags->split,
           "how to split text into documents: one per file, by paragraphs, or at delimiter "
           "lines")
      .OneOf(Names(kSplitRules))
      .ShowDefault();
  command
      .Add("--min-bytes", request.text.split.min_bytes,
           "with --split paragraphs: the least bytes of a document, unless its file is shorter")
      .AtLeast(1)
      .ShowDefault();
  command.Add("--delimiter", request.text.split.delimiter, "with --split line: the delimiter line");
  command
      .Add("--text-field", request.text.split.text_field,
           "the field of each .jsonl object that contains the document")
      .ShowDefault();
  command
      .Add("--control", flags->control,
           "documents with a zero byte: skip and count them, keep them, or refuse the input")
      .OneOf(Names(kControlRules))
      .ShowDefault();
  command
      .Add("--extension", request.text.extensions,
           "of directories, only files with this extension, such as .txt; repeatable; default: all")
      .OneValueEach();
  command
      .Add("--validation-fraction", request.text.validation_fraction,
           "share of the documents to hold out for validation")
      .FromToBelow(0.0, 1.0)
      .ShowDefault();
  command.Add("--seed", request.text.seed, "random seed of the choice of held-out documents")
      .ShowDefault();
  command
      .Add("--threads", request.text.threads,
           "number of threads, which does not affect the shards; 0: one per processor")
      .WholeNumber(0, 1024)
      .ShowDefault();
  command.AddFlag("--overwrite", request.text.overwrite, "replace existing shards");
  command.Footer("Example: nibble data tokenize texts --output-dir tokens --train-tokenizer 4096");
  AddOutputOption(command, flags->print);
  command.OnParsed([flags, &exit_code] {
    flags->request.text.split.rule = kSplitRules.at(flags->split);
    flags->request.text.split.control = kControlRules.at(flags->control);
    flags->request.training.type = kTokenizerTypes.at(flags->type);
    const auto say = [](std::string_view line) { Tell("data tokenize", line); };
    exit_code = Finish("data tokenize", flags->print, RunTokenize(flags->request, say));
  });
}

void AddInspect(Command data, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  InspectRequest& request = flags->request;
  Command command = data.AddSubcommand(
      "inspect", "Describe a token file: a shard, a GPT-2 trainer's .bin, a Megatron .idx");
  command.Add("FILE", request.file, "the token file").Required();
  command.Footer("Example: nibble data inspect tokens/train.tokens --documents 2 --text");
  Option documents =
      command.Add("--documents", request.documents, "number of documents to show").AtLeast(0);
  command.Add("--from", request.first_document, "number of the first document to show")
      .AtLeast(0)
      .Needs(documents)
      .ShowDefault();
  command.Add("--max-tokens", request.max_tokens, "tokens to show of each document")
      .AtLeast(1)
      .Needs(documents)
      .ShowDefault();
  Option text = command.AddFlag("--text", request.text, "show text instead of token numbers")
                    .Needs(documents);
  command
      .Add("--tokenizer", request.tokenizer,
           "the .model or tokenizer.json to decode with; default: the one beside FILE that FILE "
           "names")
      .Needs(text);
  AddHints(command, flags->hints);
  AddOutputOption(command, flags->print);
  command.OnParsed([flags, &exit_code] {
    flags->request.hints = flags->hints.Hints();
    exit_code = Finish("data inspect", flags->print, RunInspect(flags->request));
  });
}

void AddVerify(Command data, int& exit_code) {
  auto flags = std::make_shared<VerifyFlags>();
  Command command = data.AddSubcommand("verify", "Check token files as far as their formats allow");
  command.Add("FILE", flags->request.files, "token files").Required();
  AddHints(command, flags->hints);
  AddOutputOption(command, flags->print);
  command.OnParsed([flags, &exit_code] {
    flags->request.hints = flags->hints.Hints();
    exit_code = Finish("data verify", flags->print, RunVerify(flags->request));
  });
}

}  // namespace

void AddDataCommand(Command app, int& exit_code) {
  Command data = app.AddSubcommand("data", "Token shards: make, describe and check them");
  data.RequireSubcommand();
  AddTokenize(data, exit_code);
  AddInspect(data, exit_code);
  AddVerify(data, exit_code);
}

}  // namespace nibble
