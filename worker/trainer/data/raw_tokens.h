// Reads the raw token files (.bin) of GPT-2 trainers (docs/formats/token-files.md): with llm.c's
// header, which tells the width and the count, or nothing but tokens, as nanoGPT writes them.
//
// They have no checksum and no index. Sizes are checked at Open(), each token against the
// vocabulary at every Read(). With a document mark, Open() reads the whole file once and keeps 8
// bytes per document.
//
// Ownership: holds the mapping. The file must not be written to in place while it is open.
// Thread-safety: immutable; const methods may be called from any thread.
#ifndef NIBBLE_WORKER_TRAINER_DATA_RAW_TOKENS_H_
#define NIBBLE_WORKER_TRAINER_DATA_RAW_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/token_array.h"
#include "worker/trainer/data/token_hints.h"
#include "worker/trainer/data/token_store.h"

namespace nibble {

// Whether a file begins with a magic number of llm.c's token files.
bool HasRawHeader(absl::Span<const std::byte> file);

class RawTokens final : public TokenSource {
 public:
  // `path` is for messages, which name it and the field.
  //
  //   InvalidArgument  a hint is out of bounds (see Validate()); no header and no width, or both; a
  //                    rule of the header is broken; the size is not that of the tokens; or, where
  //                    there is a document mark, a token is outside the vocabulary
  static absl::StatusOr<std::unique_ptr<RawTokens>> Open(std::string path, MappedFile file,
                                                         const TokenHints& hints);

  const std::string& name() const override { return path_; }
  const std::string& tokenizer() const override { return hints_.tokenizer; }
  int64_t vocabulary() const override { return hints_.vocabulary; }
  int64_t tokens() const override { return array_.size(); }
  int64_t documents() const override { return static_cast<int64_t>(document_end_.size()); }
  std::string format() const override { return format_; }
  int token_width() const override { return TokenTypeBytes(array_.type()); }
  // The mark, where it ends documents; the last one may lack it.
  std::optional<int32_t> end_of_document() const override;
  int64_t DocumentBegin(int64_t document) const override {
    return document == 0 ? 0 : document_end_[document - 1];
  }
  absl::Status Read(int64_t first, int64_t count, int32_t* out) const override {
    return array_.Read(path_, hints_.vocabulary, first, count, out);
  }

 private:
  RawTokens(std::string path, MappedFile file, TokenHints hints)
      : path_(std::move(path)), file_(std::move(file)), hints_(std::move(hints)) {}

  absl::Status Load();
  absl::Status LoadHeader();
  absl::Status FindDocuments();

  const std::string path_;
  const MappedFile file_;
  const TokenHints hints_;
  std::string format_;
  TokenArray array_;  // into the mapping
  std::vector<int64_t> document_end_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_RAW_TOKENS_H_
