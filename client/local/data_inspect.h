// What `nibble data inspect` and `nibble data verify` do: look into token files of any format that
// open_tokens.h reads.
//
// Ownership: none kept. Thread-safety: pure functions of the file system.
#ifndef NIBBLE_CLIENT_LOCAL_DATA_INSPECT_H_
#define NIBBLE_CLIENT_LOCAL_DATA_INSPECT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/data/token_hints.h"

namespace nibble {

struct InspectRequest {
  std::string file;
  // Of a file of other trainers; a tokenizer or vocabulary that is not given is shown as unknown.
  TokenHints hints;
  int64_t first_document = 0;
  int64_t documents = 0;     // that are shown, from there on
  int64_t max_tokens = 256;  // that are shown of each
  bool text = false;         // as text instead of numbers
  // The tokenizer that `text` needs, as LoadTokenizer() takes it; empty: found by the file's label
  // (see tokenizer_files.h).
  std::string tokenizer;
  bool json = false;
};

// The text for stdout.
absl::StatusOr<std::string> RunInspect(const InspectRequest& request);

struct VerifyRequest {
  std::vector<std::string> files;
  TokenHints hints;
  bool json = false;
};

struct Verified {
  std::string output;  // for stdout, of all files
  // Of the files that were found wanting, in their order; each message names its file.
  std::vector<absl::Status> errors;
};

// Checks all that the formats allow to check. `warn` takes one line, without its end, where that is
// less than one may think.
Verified RunVerify(const VerifyRequest& request,
                   const std::function<void(std::string_view line)>& warn);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_DATA_INSPECT_H_
