// Wraps the SentencePiece library in standard-library types: its headers define absl::string_view
// differently from Abseil's, so one file cannot include both.
//
// The library bundles its own protobuf under the usual names, so a program that uses this must not
// also load libprotobuf as a shared library: see docs/formats/tokenizers.md.
//
// Ownership: a Model owns the library's object. Thread-safety: const methods may be called from any
// thread; Train() sets the library's process-wide log level.
#ifndef NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_LIBRARY_H_
#define NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_LIBRARY_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble::sentencepiece_internal {

// The library's message; empty on success.
using Error = std::string;

class Model {
 public:
  Model();
  ~Model();

  // Call once, before any other method; after an error the Model can only be destroyed.
  Error Load(std::string_view serialized);

  int pieces() const;
  int end_of_sentence() const;  // -1: none
  Error Encode(std::string_view text, std::vector<int>& tokens) const;
  Error Decode(const std::vector<int>& tokens, std::string& text) const;

 private:
  struct Processor;
  std::unique_ptr<Processor> processor_;
};

// `next` returns the next sentence, or an empty one at the end.
Error Train(const std::unordered_map<std::string, std::string>& options,
            const std::function<std::string()>& next, std::string& serialized);

}  // namespace nibble::sentencepiece_internal

#endif  // NIBBLE_WORKER_TRAINER_DATA_SENTENCEPIECE_LIBRARY_H_
