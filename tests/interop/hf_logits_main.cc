// Computes the logits of a Hugging Face model and writes them to a file:
//
//   hf-logits DIRECTORY TOKEN,TOKEN,... OUT
//
// OUT: [tokens, vocab] FP32, little-endian, nothing else.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/interop/source_logits.h"
#include "worker/interop/hf_import.h"

namespace nibble {
namespace {

absl::Status Run(const std::string& directory, const std::string& list, const std::string& out) {
  std::vector<int32_t> tokens;
  for (const std::string& text : std::vector<std::string>(absl::StrSplit(list, ','))) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(text, &token)) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not a token"));
    }
    tokens.push_back(token);
  }
  const absl::StatusOr<std::unique_ptr<HfWeights>> source = HfWeights::Open(directory);
  if (!source.ok()) return source.status();
  for (const std::string& remark : (*source)->notices()) {
    std::fprintf(stderr, "note: %s\n", remark.c_str());
  }
  const absl::StatusOr<std::vector<float>> logits = SourceLogits(**source, tokens);
  if (!logits.ok()) return logits.status();
  std::ofstream file(out, std::ios::binary);
  file.write(reinterpret_cast<const char*>(logits->data()),
             static_cast<std::streamsize>(logits->size() * sizeof(float)));
  file.close();
  return file.good() ? absl::OkStatus()
                     : absl::UnknownError(absl::StrCat("writing ", out, " failed"));
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s DIRECTORY TOKEN,TOKEN,... OUT\n", argv[0]);
    return 2;
  }
  const absl::Status status = nibble::Run(argv[1], argv[2], argv[3]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
