// Sources of tokens: the interface through which samples are read from any file format, and opening
// a token file of any supported format.
//
// Ownership: an implementation owns the files it reads from.
// Thread-safety: const methods may be called from any thread; the functions depend on nothing but
// the file system.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TOKEN_SOURCE_H_
#define NIBBLE_WORKER_TRAINER_DATA_TOKEN_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nibble {

// An immutable sequence of tokens divided into documents.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual const std::string& name() const = 0;       // for messages: a path
  virtual const std::string& tokenizer() const = 0;  // Tokenizer::label() of their tokenizer
  virtual int64_t vocabulary() const = 0;            // every token read is in [0, vocabulary)
  virtual int64_t tokens() const = 0;
  virtual int64_t documents() const = 0;

  virtual std::string format() const = 0;                      // of the file, for display
  virtual int token_width() const = 0;                         // bytes per token in the file
  virtual std::optional<int32_t> end_of_document() const = 0;  // that ends every document

  // The position of the first token of `document`, in [0, documents()]; tokens() for documents().
  // No document is empty, and the first begins at 0.
  virtual int64_t DocumentBegin(int64_t document) const = 0;

  // Copies the tokens at [first, first + count). `out` is unspecified after an error.
  //
  //   OutOfRange       the range is not inside [0, tokens())
  //   InvalidArgument  a token in the file is not in the vocabulary
  //   DataLoss         the file is damaged there
  virtual absl::Status Read(int64_t first, int64_t count, int32_t* out) const = 0;

  // Makes the checks of Read() for every token, also those read before. Errors as Read().
  virtual absl::Status Verify() const;

  // The document of the token at `position`, in [0, tokens()). O(log documents).
  int64_t DocumentOf(int64_t position) const;

 protected:
  // Reads all tokens in order, a block at a time. Errors as Read().
  absl::Status ReadBlocks(
      absl::FunctionRef<void(int64_t first, absl::Span<const int32_t> block)> visit) const;
};

// A token that begins or ends every document.
struct DocumentMark {
  enum class Place : uint8_t { kEnds, kBegins };

  int32_t token = 0;
  Place place = Place::kEnds;  // it is the document's last token, or its first
};

// What the token files of other trainers do not record, so that the caller has to supply it.
struct TokenHints {
  // Tokenizer::label() of the tokenizer that made the tokens, and its vocabulary.
  std::string tokenizer;
  int64_t vocabulary = 0;
  // Bytes per token of a file without a header: 2 or 4. 0: the file has a header that records it.
  int token_width = 0;
  // For files without an index of documents. nullopt: the file is one document.
  std::optional<DocumentMark> document_mark;
};

// Checks the hints for a file of another trainer. InvalidArgument, naming the hint, its value and
// its bound, unless the label has 1 to 32 printable ASCII characters, the vocabulary is in [1,
// 2^31], the width is 0, 2 or 4, and the mark, if any, is in the vocabulary.
absl::Status Validate(const TokenHints& hints);

// Nibble's own shards, raw .bin files of GPT-2 trainers, Megatron-LM's .idx with its .bin; the
// formats are described in docs/formats/.
enum class TokenFileKind : uint8_t {
  kNone,           // no known first bytes: raw tokens without a header, or not a token file
  kShard,          // needs no hints
  kRaw,            // raw tokens after a header
  kMegatronIndex,  // a Megatron .idx
};

// Whether `file`, the whole content, is a Parquet file, which is not read; and how its text is made
// readable: a clause for messages.
bool IsParquet(std::string_view file);
std::string ParquetRemedy();

// Detects the kind from the file's first bytes.
//
//   InvalidArgument  a known kind of file that is not supported; names the kind
//   FailedPrecondition, NotFound, PermissionDenied, ...  as MappedFile::Open()
absl::StatusOr<TokenFileKind> RecogniseTokens(const std::string& path);

// Opens a token file of any kind. A file of kNone is read as raw tokens only if hints.token_width
// is set: a file is never read as a kind that neither its bytes nor the hints name. For an index,
// `path` ends with .idx and the tokens are in the same path with .bin. If hints name a tokenizer or
// a vocabulary, a shard must agree with them.
//
//   as RecogniseTokens(), TokenShard::Open(), RawTokens::Open(), MegatronTokens::Open()
//   InvalidArgument  a hint that does not go with the file; a file of kNone without token_width
absl::StatusOr<std::unique_ptr<TokenSource>> OpenTokens(const std::string& path,
                                                        const TokenHints& hints = {});

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TOKEN_SOURCE_H_
