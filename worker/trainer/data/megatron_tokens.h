// Reads the token files of Megatron-LM (docs/formats/token-files.md): NAME.idx, an index of version
// 1, and NAME.bin, the tokens. A document is a document of the index; the sequences that it is
// made of run into each other.
//
// Neither file has a checksum. Open() checks every number of the index against the others and the
// size of the tokens, without a copy of it; each token is checked against the vocabulary at every
// Read().
//
// Ownership: holds the mappings. The files must not be written to in place while they are open.
// Thread-safety: immutable; const methods may be called from any thread.
#ifndef NIBBLE_WORKER_TRAINER_DATA_MEGATRON_TOKENS_H_
#define NIBBLE_WORKER_TRAINER_DATA_MEGATRON_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/token_array.h"
#include "worker/trainer/data/token_hints.h"
#include "worker/trainer/data/token_store.h"

namespace nibble {

// Whether a file begins with the magic of an index.
bool HasMegatronMagic(absl::Span<const std::byte> file);

class MegatronTokens final : public TokenSource {
 public:
  // `path` is the index's and for messages, which name it or, of the tokens, `path` ".bin", and the
  // field.
  //
  //   InvalidArgument  a hint is out of bounds (see Validate()) or speaks of what the index says;
  //                    a rule of the index is broken; the tokens are not as many as it says
  static absl::StatusOr<std::unique_ptr<MegatronTokens>> Open(std::string path, MappedFile index,
                                                              MappedFile tokens,
                                                              const TokenHints& hints);

  const std::string& name() const override { return path_; }
  const std::string& tokenizer() const override { return hints_.tokenizer; }
  int64_t vocabulary() const override { return hints_.vocabulary; }
  int64_t tokens() const override { return array_.size(); }
  int64_t documents() const override { return documents_; }
  std::string format() const override;
  int token_width() const override { return TokenTypeBytes(array_.type()); }
  std::optional<int32_t> end_of_document() const override { return std::nullopt; }  // not told
  int64_t DocumentBegin(int64_t document) const override;
  absl::Status Read(int64_t first, int64_t count, int32_t* out) const override {
    return array_.Read(path_, hints_.vocabulary, first, count, out);
  }

  int64_t sequences() const { return sequences_; }

 private:
  MegatronTokens(std::string path, MappedFile index, MappedFile tokens, TokenHints hints)
      : path_(std::move(path)),
        index_(std::move(index)),
        tokens_(std::move(tokens)),
        hints_(std::move(hints)) {}

  absl::Status Load();
  absl::Status CheckSequences() const;
  absl::Status CheckDocuments() const;

  // Of the index's arrays; a sequence is in [0, sequences_], a document in [0, documents_].
  int64_t LengthOf(int64_t sequence) const;   // in tokens
  int64_t PointerOf(int64_t sequence) const;  // in bytes; of the last + 1: where tokens end
  int64_t FirstSequence(int64_t document) const;

  const std::string path_;
  const MappedFile index_;
  const MappedFile tokens_;
  const TokenHints hints_;
  TokenArray array_;  // into tokens_
  int64_t sequences_ = 0;
  int64_t documents_ = 0;
  // Into the index, not aligned.
  const std::byte* lengths_ = nullptr;       // [sequences] int32
  const std::byte* pointers_ = nullptr;      // [sequences] int64
  const std::byte* documents_at_ = nullptr;  // [documents + 1] int64
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_MEGATRON_TOKENS_H_
