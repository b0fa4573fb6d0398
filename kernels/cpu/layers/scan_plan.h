// The chunks of a scan, and the documents in each.
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
  // The number of tokens at the beginning of the chunk that belong to the document of the token
  // before the chunk: they depend on the state that enters.
  int entering = 0;
  // The first token here of the last token's document: the tokens from it on contribute to the
  // state that leaves.
  int last_doc = 0;

  // Whether the state that leaves depends on the one that enters.
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
  // Whether chunk i + 1 begins with tokens that depend on the state that leaves chunk i.
  bool followed(int64_t i) const {
    return (i + 1) % per_sequence_ != 0 && chunks_[i + 1].entering > 0;
  }
  // The length of the longest chunk, and that rounded up to whole vectors.
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
