// Opens a file of tokens whatever its format: Nibble's own shards, raw .bin files of GPT-2
// trainers, Megatron-LM's .idx with its .bin. Formats: docs/formats/.
//
// Ownership: see the readers. Thread-safety: pure functions of the file system.
#ifndef NIBBLE_WORKER_TRAINER_DATA_OPEN_TOKENS_H_
#define NIBBLE_WORKER_TRAINER_DATA_OPEN_TOKENS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/trainer/data/token_hints.h"
#include "worker/trainer/data/token_store.h"

namespace nibble {

enum class TokenFileKind : uint8_t {
  kNone,           // begins like none of the others: raw tokens without a header, or no tokens
  kShard,          // says all of itself
  kRaw,            // raw tokens behind a header
  kMegatronIndex,  // a Megatron .idx
};

// By the file's first bytes.
//
//   InvalidArgument  a kind of token file that is known and not read: says which
//   FailedPrecondition, NotFound, PermissionDenied, ...  as MappedFile::Open()
absl::StatusOr<TokenFileKind> RecogniseTokens(const std::string& path);

// Opens what RecogniseTokens() recognises, and a file of kNone as nothing but tokens where
// hints.token_width says so: a file is never taken for what neither its bytes nor its hints say. Of
// an index, `path` ends with .idx, and the tokens are in the file with .bin instead. A shard's own
// tokenizer and vocabulary must agree with the hints, where these are given.
//
//   as RecogniseTokens(), TokenShard::Open(), RawTokens::Open(), MegatronTokens::Open()
//   InvalidArgument  a hint that does not go with the file; a file of kNone without token_width
absl::StatusOr<std::unique_ptr<TokenSource>> OpenTokens(const std::string& path,
                                                        const TokenHints& hints = {});

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_OPEN_TOKENS_H_
