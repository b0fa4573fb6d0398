// Readers for the token files of other trainers (docs/formats/token-files.md): raw .bin files of
// GPT-2 trainers and the .idx/.bin pairs of Megatron-LM.
//
// None of these files has a checksum. Open() validates sizes and, for Megatron, the whole index;
// Read() checks every token against the vocabulary.
//
// Ownership: readers own their mappings; a TokenArray borrows its bytes. The files must not be
// written to in place while they are open. Thread-safety: immutable; const methods may be called
// from any thread.
#ifndef NIBBLE_WORKER_TRAINER_DATA_FOREIGN_TOKENS_H_
#define NIBBLE_WORKER_TRAINER_DATA_FOREIGN_TOKENS_H_

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
#include "worker/trainer/data/token_source.h"

namespace nibble {

// Up to kUint16 they are the codes of a Megatron index.
enum class TokenType : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint16 = 8,
  kUint32 = 9,
};

int TokenTypeBytes(TokenType type);
const char* TokenTypeName(TokenType type);

// Integers of some width in a file, read as tokens.
class TokenArray {
 public:
  TokenArray() = default;
  // `bytes`: little-endian, need not be aligned; their number is a multiple of the type's size.
  TokenArray(TokenType type, absl::Span<const std::byte> bytes)
      : type_(type),
        data_(bytes.data()),
        size_(static_cast<int64_t>(bytes.size()) / TokenTypeBytes(type)) {}

  TokenType type() const { return type_; }
  int64_t size() const { return size_; }

  // As TokenSource::Read(): OutOfRange, or InvalidArgument with the position and the value of the
  // first token of the range that is not in [0, vocabulary). Messages begin with `name`.
  absl::Status Read(const std::string& name, int64_t vocabulary, int64_t first, int64_t count,
                    int32_t* out) const;

 private:
  TokenType type_ = TokenType::kUint16;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;  // tokens
};

// Whether a file begins with a magic number of llm.c's token files.
bool HasRawHeader(absl::Span<const std::byte> file);

// A raw token file (.bin): with llm.c's header, which records width and count, or only tokens, as
// nanoGPT writes them. There is no index: with a document mark, Open() reads the whole file once
// and keeps 8 bytes per document.
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
  // The document mark, if it ends documents; the last document may lack it.
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

// Whether a file begins with the magic number of a Megatron-LM index.
bool HasMegatronMagic(absl::Span<const std::byte> file);

// The token files of Megatron-LM: NAME.idx, an index of version 1, and NAME.bin, the tokens.
// Documents are those of the index; the sequences of a document are concatenated. Open() checks
// every number of the index against the others and the size of the tokens, without copying it.
class MegatronTokens final : public TokenSource {
 public:
  // `path`, the index's, is for messages, which name it or (for the tokens) `path` with ".bin", and
  // the field.
  //
  //   InvalidArgument  a hint is out of bounds (see Validate()) or gives what the index records; a
  //                    rule of the index is broken; the number of tokens differs from the index
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
  std::optional<int32_t> end_of_document() const override { return std::nullopt; }  // not recorded
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

  // Entries of the index; a sequence is in [0, sequences_], a document in [0, documents_].
  int64_t LengthOf(int64_t sequence) const;   // in tokens
  int64_t PointerOf(int64_t sequence) const;  // in bytes; for sequences_: the end of the tokens
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

#endif  // NIBBLE_WORKER_TRAINER_DATA_FOREIGN_TOKENS_H_
