// Groups the rows of a token matrix by their row of a table: a counting sort that lists, for every
// row of the table, its token rows in ascending order.
//
// Ownership: owns memory that grows to the largest request. Thread-safety: one thread at a time to
// sort, any number to read.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_ROW_GROUPS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_ROW_GROUPS_H_

#include <cstdint>

#include "kernels/cpu/layers/scratch.h"

namespace nibble::cpu {

class RowGroups {
 public:
  // All `count` rows in `rows` have this key.
  struct Group {
    int64_t key;
    const int32_t* rows;
    int64_t count;
  };

  // keys: [rows], each in [0, bound).
  void Sort(const int32_t* keys, int64_t rows, int64_t bound);

  // Groups by ascending key; only for keys that occur.
  int64_t size() const { return size_; }
  Group at(int64_t i) const {
    const Start& start = starts_[i];
    return {start.key, order_ + start.first, starts_[i + 1].first - start.first};
  }
  // The first group with the sorted row `row` or a later one: divides the groups into runs of about
  // the same number of rows.
  int64_t GroupFrom(int64_t row) const;
  int64_t rows() const { return rows_; }

 private:
  struct Start {
    int64_t key, first;
  };

  Scratch<int64_t> next_memory_;
  Scratch<int32_t> order_memory_;
  Scratch<Start> starts_memory_;
  const int32_t* order_ = nullptr;
  const Start* starts_ = nullptr;
  int64_t size_ = 0, rows_ = 0;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_ROW_GROUPS_H_
