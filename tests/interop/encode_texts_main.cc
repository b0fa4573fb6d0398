// Prints the tokens of texts, for live_check.py to compare with Hugging Face's:
//
//   encode-texts TOKENIZER TEXTS
//
// TEXTS has texts, each followed by a zero byte. For each, prints a line with its tokens and a line
// with its tokens when it is cut at every permitted position.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

absl::Status Print(const Tokenizer& tokenizer, std::string_view text, size_t piece_bytes) {
  std::vector<int32_t> tokens;
  for (size_t begin = 0; begin < text.size();) {
    const size_t size = tokenizer.PieceEnd(text.substr(begin), piece_bytes);
    absl::Status status = tokenizer.EncodePiece(
        text.substr(begin, size), static_cast<int64_t>(begin), [&](absl::Span<const int32_t> more) {
          tokens.insert(tokens.end(), more.begin(), more.end());
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    begin += size;
  }
  std::printf("%s\n", absl::StrJoin(tokens, " ").c_str());
  return absl::OkStatus();
}

absl::Status Run(const std::string& named, const std::string& path) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(named);
  if (!tokenizer.ok()) return tokenizer.status();
  std::ifstream in(path, std::ios::binary);
  const std::string texts{std::istreambuf_iterator<char>(in), {}};
  std::string_view rest = texts;
  while (!rest.empty()) {
    const std::string_view text = rest.substr(0, rest.find('\0'));
    absl::Status status = Print(**tokenizer, text, text.size());
    if (status.ok()) status = Print(**tokenizer, text, 1);
    if (!status.ok()) return status;
    rest.remove_prefix(text.size() + 1);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s TOKENIZER TEXTS\n", argv[0]);
    return 2;
  }
  const absl::Status status = nibble::Run(argv[1], argv[2]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
