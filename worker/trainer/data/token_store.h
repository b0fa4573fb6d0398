// An immutable run of tokens cut into documents: what samples are read from, whatever file format
// lies beneath.
//
// Ownership: an implementation owns what it reads from.
// Thread-safety: immutable as seen from outside; const methods may be called from any thread.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TOKEN_STORE_H_
#define NIBBLE_WORKER_TRAINER_DATA_TOKEN_STORE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace nibble {

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual const std::string& name() const = 0;       // for messages: a path
  virtual const std::string& tokenizer() const = 0;  // Tokenizer::label() of what made the tokens
  virtual int64_t vocabulary() const = 0;            // every token read is in [0, vocabulary)
  virtual int64_t tokens() const = 0;
  virtual int64_t documents() const = 0;

  virtual std::string format() const = 0;                      // of the file, for people
  virtual int token_width() const = 0;                         // bytes in the file
  virtual std::optional<int32_t> end_of_document() const = 0;  // that ends every document

  // The position of the first token of `document` in [0, documents()], where documents() gives
  // tokens(). No document is empty, and the first begins at 0.
  virtual int64_t DocumentBegin(int64_t document) const = 0;

  // Copies the tokens at [first, first + count). What is under `out` after an error is undefined.
  //
  //   OutOfRange       the range is not inside [0, tokens())
  //   InvalidArgument  a token in the file is not in the vocabulary
  //   DataLoss         the file is damaged there
  virtual absl::Status Read(int64_t first, int64_t count, int32_t* out) const = 0;

  // Everything that Read() checks, of every token, whether it was read before or not. Errors as
  // Read().
  virtual absl::Status Verify() const;

  // The document that holds the token at `position` in [0, tokens()): O(log documents).
  int64_t DocumentOf(int64_t position) const;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TOKEN_STORE_H_
