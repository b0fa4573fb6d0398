// Where the chunks of a scan lie, and what the beginnings of documents mean inside each.
//
// Ownership: owns its tables, which grow to the largest layout seen. Thread-safety: const methods
// may run concurrently.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_SCAN_PLAN_H_
#define NIBBLE_KERNELS_CPU_LAYERS_SCAN_PLAN_H_

#include <cstdint>
#include <vector>

#include "kernels/ops/sequence.h"

namespace nibble::cpu {

struct ScanChunk {
  int64_t row = 0;  // of its first token
  int tokens = 0;
  // So many tokens at its beginning belong to the document that was running before the chunk: they
  // see the state that enters.
  int entering = 0;
  // The first token here of the document that is running at the end: it and those after it make
  // the state that leaves.
  int last_doc = 0;

  // Whether the state that leaves still holds the one that enters.
  bool carries() const { return entering == tokens; }
};

class ScanPlan {
 public:
  // Chunks of `chunk` tokens, the last of a sequence perhaps shorter.
  void Reset(const SequenceLayout& layout, int chunk);

  int64_t chunks_per_sequence() const { return per_sequence_; }
  int64_t count() const { return static_cast<int64_t>(chunks_.size()); }
  // In the order of the rows.
  const ScanChunk& chunk(int64_t i) const { return chunks_[i]; }
  // Whether chunk i + 1 begins with tokens that see the state which leaves chunk i.
  bool followed(int64_t i) const {
    return (i + 1) % per_sequence_ != 0 && chunks_[i + 1].entering > 0;
  }
  // Tokens of the longest chunk, and the same to whole vectors.
  int tokens() const { return tokens_; }
  int padded() const { return padded_; }

  // [padded()], for chunk i's tokens: the first token of the chunk that the token sees, and one
  // past the last that sees it. Both are positions in the chunk. The lanes after the last token
  // repeat it.
  const int32_t* first(int64_t i) const { return first_.data() + i * padded_; }
  const int32_t* end(int64_t i) const { return end_.data() + i * padded_; }

 private:
  int64_t per_sequence_ = 0;
  int tokens_ = 0, padded_ = 0;
  std::vector<ScanChunk> chunks_;
  std::vector<int32_t> first_, end_;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_SCAN_PLAN_H_
