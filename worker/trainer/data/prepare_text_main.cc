// prepare_text: text files to a training and a validation shard of byte tokens.
//
// Exit codes: 0 done, 1 error, 2 usage.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "worker/trainer/data/byte_tokenizer.h"
#include "worker/trainer/data/document_split.h"
#include "worker/trainer/data/text_shards.h"

namespace {

constexpr int kUsage = 2;

void Print(const char* split, const nibble::TextShard& shard) {
  absl::PrintF("%-10s %10d documents %14d tokens %14d bytes  %s\n", split, shard.documents,
               shard.tokens, shard.bytes, shard.path);
}

}  // namespace

int main(int argc, char** argv) {
  nibble::PrepareTextOptions options;
  options.validation_fraction = 0.05;
  std::string split = "file";
  CLI::App app("Turns text files into token shards to train and to validate on", "prepare_text");
  app.add_option("--input", options.inputs, "Text files, and directories of such")->required();
  app.add_option("--extension", options.extensions,
                 "Of a directory only files whose names end so, e.g. .txt (default: all)");
  app.add_option("--output-dir", options.output_dir,
                 "Where train.tokens and validation.tokens go; made if need be")
      ->required();
  app.add_option("--validation-fraction", options.validation_fraction,
                 "Share of the documents that is held out, in [0, 1)")
      ->capture_default_str();
  const std::map<std::string, nibble::SplitRule> rules = {
      {"file", nibble::SplitRule::kFile},
      {"paragraphs", nibble::SplitRule::kParagraphs},
      {"line", nibble::SplitRule::kLine}};
  app.add_option("--split", split,
                 "What is a document: a file, paragraphs, or what lies between "
                 "lines that are the delimiter")
      ->check(CLI::IsMember(rules))
      ->capture_default_str();
  app.add_option("--min-bytes", options.split.min_bytes, "Of a document split by paragraphs")
      ->capture_default_str();
  app.add_option("--delimiter", options.split.delimiter, "Of documents split by lines");
  app.add_option("--seed", options.seed, "Of which documents are held out")->capture_default_str();
  app.add_flag("--overwrite", options.overwrite, "Replace shards that are there");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  options.split.rule = rules.at(split);

  const absl::StatusOr<nibble::PreparedText> prepared =
      nibble::PrepareText(options, nibble::ByteTokenizer());
  if (!prepared.ok()) {
    absl::FPrintF(stderr, "prepare_text: %s\n", prepared.status().message());
    return 1;
  }
  absl::PrintF("%d files\n", prepared->files);
  Print("train", prepared->train);
  if (prepared->validation.has_value()) Print("validation", *prepared->validation);
  return 0;
}
