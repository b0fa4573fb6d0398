// Trains a SentencePiece model on a text, writes it as a Hugging Face tokenizer, and prints the
// text's tokens, one on a line:
//
//   export-tokenizer bpe|unigram TEXT DIRECTORY
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker/interop/hf_tokenizer.h"
#include "worker/trainer/data/sentencepiece_tokenizer.h"
#include "worker/trainer/data/sentencepiece_training.h"
#include "worker/trainer/data/tokenizer_files.h"

namespace nibble {
namespace {

absl::Status Run(const std::string& type, const std::string& path, const std::string& directory) {
  if (type != "bpe" && type != "unigram") {
    return absl::InvalidArgumentError(absl::StrCat("'", type, "' is neither bpe nor unigram"));
  }
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const absl::StatusOr<std::string> model = TrainSentencePiece(
      text, {.vocabulary = 400,
             .type = type == "bpe" ? SentencePieceType::kBpe : SentencePieceType::kUnigram});
  if (!model.ok()) return model.status();
  const absl::StatusOr<std::string> saved = SaveSentencePieceModel(directory, *model);
  if (!saved.ok()) return saved.status();
  const absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> tokenizer =
      SentencePieceTokenizer::Load(*saved);
  if (!tokenizer.ok()) return tokenizer.status();
  const auto files = HfTokenizerFiles(**tokenizer, directory);
  if (!files.ok()) return files.status();
  for (const auto& [name, content] : *files) {
    std::ofstream(absl::StrCat(directory, "/", name), std::ios::binary) << content;
  }
  return (*tokenizer)->Encode(text, [](absl::Span<const int32_t> tokens) {
    for (const int32_t token : tokens) std::printf("%d\n", token);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s bpe|unigram TEXT DIRECTORY\n", argv[0]);
    return 2;
  }
  const absl::Status status = nibble::Run(argv[1], argv[2], argv[3]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
