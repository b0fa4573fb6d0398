// Writes a tokenizer as files of a Hugging Face directory: a SentencePiece model trained on a text,
// or the tokenizer of a file.
//
//   export-tokenizer bpe|unigram TEXT DIRECTORY
//   export-tokenizer file TOKENIZER DIRECTORY
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "worker/interop/hf_tokenizer.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/sentencepiece_training.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> Make(const std::string& kind, const std::string& path) {
  if (kind == "file") return LoadTokenizer(path);
  if (kind != "bpe" && kind != "unigram") {
    return absl::InvalidArgumentError(
        absl::StrCat("'", kind, "' is neither bpe, unigram nor file"));
  }
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const absl::StatusOr<std::string> model = TrainSentencePiece(
      text, {.vocabulary = 1000,
             .type = kind == "bpe" ? SentencePieceType::kBpe : SentencePieceType::kUnigram});
  if (!model.ok()) return model.status();
  absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> tokenizer =
      SentencePieceTokenizer::FromModel("the trained model", *model);
  if (!tokenizer.ok()) return tokenizer.status();
  return *std::move(tokenizer);
}

absl::Status Run(const std::string& kind, const std::string& path, const std::string& directory) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Make(kind, path);
  if (!tokenizer.ok()) return tokenizer.status();
  const auto files = HfTokenizerFiles(**tokenizer);
  if (!files.ok()) return files.status();
  for (const auto& [name, content] : *files) {
    std::ofstream(absl::StrCat(directory, "/", name), std::ios::binary) << content;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s bpe|unigram|file PATH DIRECTORY\n", argv[0]);
    return 2;
  }
  const absl::Status status = nibble::Run(argv[1], argv[2], argv[3]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
