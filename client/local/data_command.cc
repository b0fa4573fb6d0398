#include "client/local/data_command.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/local/data_inspect.h"
#include "client/local/data_tokenize.h"
#include "client/local/exit_code.h"
#include "client/local/finish.h"
#include "client/local/number_check.h"
#include "client/local/output_format.h"
#include "worker/trainer/data/document_split.h"
#include "worker/trainer/data/sentencepiece_training.h"
#include "worker/trainer/data/token_hints.h"

namespace nibble {
namespace {

const std::map<std::string, SplitRule> kSplitRules = {
    {"file", SplitRule::kFile}, {"paragraphs", SplitRule::kParagraphs}, {"line", SplitRule::kLine}};
const std::map<std::string, SentencePieceType> kTokenizerTypes = {
    {"bpe", SentencePieceType::kBpe}, {"unigram", SentencePieceType::kUnigram}};

// What the options write to, in the words of the command line.
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

void AddHints(CLI::App* command, HintFlags& flags) {
  const char* const kGroup = "Files of other trainers, which do not say";
  command->add_option("--tokenizer-label", flags.hints.tokenizer, "what made the tokens: gpt2, say")
      ->group(kGroup);
  command->add_option("--vocabulary", flags.hints.vocabulary, "tokens are below it: 50257, say")
      ->check(WholeNumber(int64_t{1}, int64_t{1} << 31))
      ->group(kGroup);
  command
      ->add_option("--token-width", flags.hints.token_width,
                   "bytes per token of a file of nothing but tokens: 2 or 4")
      ->check(CLI::IsMember({2, 4}))
      ->group(kGroup);
  CLI::Option* mark =
      command->add_option("--document-mark", flags.mark, "token that ends every document")
          ->check(WholeFor(flags.mark, 0))
          ->group(kGroup);
  command->add_flag("--mark-begins", flags.mark_begins, "it begins every document instead")
      ->needs(mark)
      ->group(kGroup);
}

void AddTokenize(CLI::App* data, int& exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  TokenizeRequest& request = flags->request;
  request.text.validation_fraction = 0.05;
  request.text.threads = 0;
  CLI::App* command = data->add_subcommand(
      "tokenize", "Make token shards of text files: one to train on, one to validate on");
  command
      ->add_option("INPUT", request.text.inputs,
                   "text files, .jsonl files (see --text-field), either with .gz or .zst, and "
                   "directories of such")
      ->required();
  command
      ->add_option("--output-dir", request.text.output_dir,
                   "where train.tokens and validation.tokens go; made if need be")
      ->required();
  CLI::Option* model = command->add_option(
      "--tokenizer", request.tokenizer,
      "a SentencePiece .model or a Hugging Face tokenizer.json; without it tokens are bytes");
  CLI::Option* train =
      command
          ->add_option("--train-tokenizer", request.training.vocabulary,
                       "train a SentencePiece model of so many pieces on the text first")
          ->check(WholeNumber(SentencePieceTraining::kMinVocabulary,
                              SentencePieceTraining::kMaxVocabulary))
          ->excludes(model);
  command->add_option("--tokenizer-type", flags->type, "of the model to train: bpe or unigram")
      ->check(CLI::IsMember(kTokenizerTypes))
      ->needs(train)
      ->capture_default_str();
  command
      ->add_option("--sample-bytes", request.sample_bytes,
                   "of text to train it on, drawn by lines where there is more")
      ->check(WholeFor(request.sample_bytes, 1))
      ->needs(train)
      ->capture_default_str();
  command
      ->add_option("--split", flags->split,
                   "what is a document: a file, paragraphs, or what lies between lines that are "
                   "the delimiter (line)")
      ->check(CLI::IsMember(kSplitRules))
      ->capture_default_str();
  command
      ->add_option("--min-bytes", request.text.split.min_bytes,
                   "of a document of paragraphs, unless its file is shorter")
      ->check(WholeFor(request.text.split.min_bytes, 1))
      ->capture_default_str();
  command->add_option("--delimiter", request.text.split.delimiter, "of documents split by line");
  command
      ->add_option("--text-field", request.text.split.text_field,
                   "the field of each line's object that holds the document, in .jsonl files")
      ->capture_default_str();
  command
      ->add_option("--extension", request.text.extensions,
                   "of a directory only files whose names end so, e.g. .txt; none: all")
      ->allow_extra_args(false);
  command
      ->add_option("--validation-fraction", request.text.validation_fraction,
                   "share of the documents that is held out, in [0, 1)")
      ->capture_default_str();
  command->add_option("--seed", request.text.seed, "of which documents are held out")
      ->capture_default_str();
  command
      ->add_option("--threads", request.text.threads,
                   "that tokenize; 0: one per processor. They change no byte of the shards")
      ->check(WholeNumber(0, 1024))
      ->capture_default_str();
  command->add_flag("--overwrite", request.text.overwrite, "replace shards that are there");
  command->footer("Example: nibble data tokenize texts --output-dir tokens --train-tokenizer 4096");
  AddOutputOption(command, flags->print);
  command->callback([flags, &exit_code] {
    flags->request.text.split.rule = kSplitRules.at(flags->split);
    flags->request.training.type = kTokenizerTypes.at(flags->type);
    flags->request.json = ForPrograms(flags->print);
    const auto say = [](std::string_view line) { Tell("data tokenize", line); };
    exit_code = Finish("data tokenize", InFormat(flags->print, RunTokenize(flags->request, say)));
  });
}

void AddInspect(CLI::App* data, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  InspectRequest& request = flags->request;
  CLI::App* command = data->add_subcommand(
      "inspect", "What a token file holds: a shard, a GPT-2 trainer's .bin, a Megatron .idx");
  command->add_option("FILE", request.file, "the token file")->required();
  command->footer("Example: nibble data inspect tokens/train.tokens --documents 2 --text");
  CLI::Option* documents =
      command->add_option("--documents", request.documents, "show so many documents")
          ->check(WholeFor(request.documents, 0));
  command->add_option("--from", request.first_document, "from this one on")
      ->check(WholeFor(request.first_document, 0))
      ->needs(documents)
      ->capture_default_str();
  command->add_option("--max-tokens", request.max_tokens, "of each document at most so many")
      ->check(WholeFor(request.max_tokens, 1))
      ->needs(documents)
      ->capture_default_str();
  CLI::Option* text =
      command->add_flag("--text", request.text, "as text instead of numbers")->needs(documents);
  command
      ->add_option(
          "--tokenizer", request.tokenizer,
          "the .model or tokenizer.json for that; without it the one beside FILE that FILE names")
      ->needs(text);
  AddHints(command, flags->hints);
  AddOutputOption(command, flags->print);
  command->callback([flags, &exit_code] {
    flags->request.hints = flags->hints.Hints();
    flags->request.json = ForPrograms(flags->print);
    exit_code = Finish("data inspect", InFormat(flags->print, RunInspect(flags->request)));
  });
}

void AddVerify(CLI::App* data, int& exit_code) {
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* command =
      data->add_subcommand("verify", "Check every byte of token files that can be checked");
  command->add_option("FILE", flags->request.files, "token files")->required();
  AddHints(command, flags->hints);
  AddOutputOption(command, flags->print);
  command->callback([flags, &exit_code] {
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

void AddDataCommand(CLI::App& app, int& exit_code) {
  CLI::App* data = app.add_subcommand("data", "Token shards: make them, look into them");
  data->require_subcommand(1);
  AddTokenize(data, exit_code);
  AddInspect(data, exit_code);
  AddVerify(data, exit_code);
}

}  // namespace nibble
