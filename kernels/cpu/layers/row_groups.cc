#include "kernels/cpu/layers/row_groups.h"

#include <algorithm>

namespace nibble::cpu {

void RowGroups::Sort(const int32_t* keys, int64_t rows, int64_t bound) {
  int64_t* next = next_memory_.Get(bound);
  std::fill(next, next + bound, 0);
  int64_t groups = 0;
  for (int64_t i = 0; i < rows; ++i) groups += next[keys[i]]++ == 0;

  Start* starts = starts_memory_.Get(groups + 1);
  int64_t group = 0, first = 0;
  for (int64_t key = 0; key < bound; ++key) {
    if (next[key] == 0) continue;
    starts[group++] = {key, first};
    first += next[key];
    next[key] = starts[group - 1].first;
  }
  starts[group] = {bound, rows};

  int32_t* order = order_memory_.Get(rows);
  for (int64_t i = 0; i < rows; ++i) order[next[keys[i]]++] = static_cast<int32_t>(i);
  order_ = order;
  starts_ = starts;
  size_ = groups;
  rows_ = rows;
}

int64_t RowGroups::GroupFrom(int64_t row) const {
  return std::lower_bound(starts_, starts_ + size_, row,
                          [](const Start& start, int64_t at) { return start.first < at; }) -
         starts_;
}

}  // namespace nibble::cpu
