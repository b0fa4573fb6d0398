// The division of layer operations into tasks: by shape alone, so that sums and maxima taken per
// block and combined in the order of the blocks are the same for any number of threads.
//
// Thread-safety: values.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_BLOCKS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_BLOCKS_H_

#include <algorithm>
#include <cstdint>

namespace nibble::cpu {

// [0, total) in pieces of `size`, the last one shorter.
struct Blocks {
  int64_t total;
  int64_t size;

  int64_t count() const { return (total + size - 1) / size; }
  int64_t begin(int64_t block) const { return block * size; }
  int64_t end(int64_t block) const { return std::min(total, (block + 1) * size); }
};

// Blocks of whole rows of `cols` elements, about `elements` each.
inline Blocks RowBlocks(int64_t rows, int64_t cols, int64_t elements) {
  return {rows, std::max<int64_t>(1, elements / std::max<int64_t>(1, cols))};
}

// Rows [row, row_end) × columns [col, col_end).
struct BlockPatch {
  int64_t row, row_end, col, col_end;
};

// [rows, cols] in patches of about `elements`, each of whole rows where they are not longer.
struct Patches {
  Patches(int64_t rows, int64_t cols, int64_t elements)
      : down(RowBlocks(rows, cols, elements)), across{cols, elements} {}

  int64_t count() const { return down.count() * across.count(); }
  BlockPatch at(int64_t i) const {
    const int64_t row = i / across.count(), col = i % across.count();
    return {down.begin(row), down.end(row), across.begin(col), across.end(col)};
  }

  Blocks down, across;
};

// Blocks of rows for operations that write a row of partial sums per block: 128 rows each, or more
// so that there are at most 256 blocks and the partial sums stay small beside the matrix.
inline Blocks SumBlocks(int64_t rows) { return {rows, std::max<int64_t>(128, (rows + 255) / 256)}; }

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_BLOCKS_H_
