#include "kernels/cpu/layers/scan_plan.h"

#include <algorithm>

namespace nibble::cpu {
namespace {

constexpr int kLanes = 16;

}  // namespace

void ScanPlan::Reset(const SequenceLayout& layout, int chunk) {
  tokens_ = static_cast<int>(std::min<int64_t>(chunk, layout.length));
  padded_ = (tokens_ + kLanes - 1) / kLanes * kLanes;
  per_sequence_ = tokens_ == 0 ? 0 : (layout.length + tokens_ - 1) / tokens_;
  chunks_.resize(layout.sequences * per_sequence_);
  first_.resize(chunks_.size() * padded_);
  end_.resize(chunks_.size() * padded_);
  for (int64_t i = 0; i < count(); ++i) {
    const int64_t sequence = i / per_sequence_;
    const int64_t begin = i % per_sequence_ * tokens_;
    ScanChunk& here = chunks_[i];
    here.row = sequence * layout.length + begin;
    here.tokens = static_cast<int>(std::min<int64_t>(tokens_, layout.length - begin));
    here.entering = 0;
    int32_t* first = first_.data() + i * padded_;
    int32_t* end = end_.data() + i * padded_;
    for (int t = 0; t < here.tokens; ++t) {
      const int64_t doc = layout.doc_begin == nullptr ? 0 : layout.doc_begin[here.row + t];
      if (doc < begin) ++here.entering;
      first[t] = static_cast<int32_t>(std::max<int64_t>(doc - begin, 0));
    }
    here.last_doc = first[here.tokens - 1];
    std::fill(first + here.tokens, first + padded_, here.last_doc);
    std::fill(end + here.tokens, end + padded_, here.tokens);
    end[here.tokens - 1] = here.tokens;
    for (int t = here.tokens - 2; t >= 0; --t) {
      end[t] = first[t + 1] == first[t] ? end[t + 1] : t + 1;
    }
  }
}

}  // namespace nibble::cpu
