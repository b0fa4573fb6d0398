#include "kernels/cpu/layers/cpu_token_ops.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cpu/layers/blocks.h"

namespace nibble {
namespace {

using cpu::Blocks;

constexpr int64_t kTaskElements = 32768;
// Columns per task that adds rows by key: even a batch of one token alone has several tasks.
constexpr int64_t kGatherCols = 512;

int TokenIndex(DType dtype) { return static_cast<int>(dtype); }

// The positions are null if they are not used.
absl::Status CheckTokens(const char* operation, const int32_t* tokens, int64_t rows, int64_t vocab,
                         const int32_t* positions, int64_t max_positions) {
  for (int64_t row = 0; row < rows; ++row) {
    if (tokens[row] < 0 || tokens[row] >= vocab) {
      return absl::InvalidArgumentError(absl::StrCat(operation, ": row ", row, " has token ",
                                                     tokens[row], ", not in [0, ", vocab, ")"));
    }
    if (positions == nullptr) continue;
    if (positions[row] < 0 || positions[row] >= max_positions) {
      return absl::InvalidArgumentError(absl::StrCat(operation, ": row ", row, " has position ",
                                                     positions[row], ", not in [0, ", max_positions,
                                                     ")"));
    }
  }
  return absl::OkStatus();
}

const char* RowOf(const ConstMatrix& m, int64_t row) {
  return static_cast<const char*>(m.data) + row * m.stride * DTypeBytes(m.dtype);
}

}  // namespace

CpuTokenOps::CpuTokenOps(ThreadPool& pool, cpu::LayerIsa isa)
    : pool_(pool), kernels_(cpu::TableFor<cpu::TokenKernels>(isa)) {}

const int32_t* CpuTokenOps::Positions(const SequenceLayout& layout) {
  int32_t* positions = positions_.Get(layout.tokens());
  for (const Continuation& piece : layout.continued) {
    for (int64_t r = 0; r < piece.rows; ++r) {
      positions[piece.row + r] = static_cast<int32_t>(piece.position + r);
    }
  }
  for (int64_t row = 0; row < layout.sequences * layout.length; ++row) {
    const int64_t begin = layout.doc_begin == nullptr ? 0 : layout.doc_begin[row];
    positions[row] = static_cast<int32_t>(row % layout.length - begin);
  }
  return positions;
}

absl::Status CpuTokenOps::Forward(const EmbeddingForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const ConstMatrix &table = request.table, &at = request.positions;
  const MutableMatrix& out = request.out;
  const int32_t* positions = at.data == nullptr ? nullptr : Positions(request.layout);
  NIBBLE_RETURN_IF_ERROR(
      CheckTokens("embedding forward", request.tokens, out.rows, table.rows, positions, at.rows));
  const auto kernel = kernels_.embed[TokenIndex(table.dtype)][TokenIndex(out.dtype)];
  const Blocks blocks = cpu::RowBlocks(out.rows, out.cols, kTaskElements);
  pool_.ParallelFor(blocks.count(), [&](int64_t block, int) {
    for (int64_t row = blocks.begin(block); row < blocks.end(block); ++row) {
      kernel(RowOf(table, request.tokens[row]),
             positions == nullptr ? nullptr : RowOf(at, positions[row]), out.cols,
             static_cast<char*>(out.data) + row * out.stride * DTypeBytes(out.dtype));
    }
  });
  return absl::OkStatus();
}

void CpuTokenOps::AddByKey(const ConstMatrix& from, const int32_t* keys, int64_t bound,
                           float* table) {
  groups_.Sort(keys, from.rows, bound);
  const Blocks runs = cpu::RowBlocks(from.rows, from.cols, kTaskElements);
  const Blocks across{from.cols, kGatherCols};
  pool_.ParallelFor(runs.count() * across.count(), [&](int64_t task, int) {
    const int64_t run = task / across.count(), span = task % across.count();
    const int64_t end = groups_.GroupFrom(runs.end(run));
    for (int64_t i = groups_.GroupFrom(runs.begin(run)); i < end; ++i) {
      const cpu::RowGroups::Group group = groups_.at(i);
      kernels_.add_rows[TokenIndex(from.dtype)](from, group.rows, group.count, across.begin(span),
                                                across.end(span), table + group.key * from.cols);
    }
  });
}

absl::Status CpuTokenOps::Backward(const EmbeddingBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const ConstMatrix& dout = request.dout;
  const int32_t* positions = request.dpositions == nullptr ? nullptr : Positions(request.layout);
  NIBBLE_RETURN_IF_ERROR(CheckTokens("embedding backward", request.tokens, dout.rows, request.vocab,
                                     positions, request.max_positions));
  AddByKey(dout, request.tokens, request.vocab, request.dtable);
  if (positions != nullptr) AddByKey(dout, positions, request.max_positions, request.dpositions);
  return absl::OkStatus();
}

absl::Status CpuTokenOps::Run(const CrossEntropy& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const ConstMatrix& logits = request.logits;
  const MutableMatrix& dlogits = request.dlogits;
  for (int64_t row = 0; row < logits.rows; ++row) {
    const int32_t target = request.targets[row];
    if (target < -1 || target >= logits.cols) {
      return absl::InvalidArgumentError(absl::StrCat("cross entropy: row ", row, " has target ",
                                                     target, ", not in [-1, ", logits.cols, ")"));
    }
  }

  const auto kernel = kernels_.cross_entropy[TokenIndex(logits.dtype)][TokenIndex(dlogits.dtype)];
  const Blocks blocks = cpu::RowBlocks(logits.rows, logits.cols, kTaskElements);
  pool_.ParallelFor(blocks.count(), [&](int64_t block, int) {
    for (int64_t row = blocks.begin(block); row < blocks.end(block); ++row) {
      const int64_t width = DTypeBytes(dlogits.dtype);
      char* dx = dlogits.data == nullptr
                     ? nullptr
                     : static_cast<char*>(dlogits.data) + row * dlogits.stride * width;
      if (request.targets[row] < 0) {
        request.loss[row] = 0;
        if (dx != nullptr) std::memset(dx, 0, logits.cols * width);
        continue;
      }
      request.loss[row] = kernel(
          static_cast<const char*>(logits.data) + row * logits.stride * DTypeBytes(logits.dtype),
          logits.cols, request.targets[row], request.scale, dx);
    }
  });
  return absl::OkStatus();
}

}  // namespace nibble
