#include "kernels/cpu/layers/cpu_token_ops.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/layers/blocks.h"
#include "kernels/cpu/layers/matrix_check.h"

namespace nibble {
namespace {

using cpu::Blocks;
using cpu::OperandCheck;

constexpr int64_t kTaskElements = 32768;
// Columns of one task where rows are gathered: a token that fills the batch still has some tasks.
constexpr int64_t kGatherCols = 512;

int Index(DType dtype) { return static_cast<int>(dtype); }

// The index within its document of a layout's token.
int64_t PositionOf(const SequenceLayout& layout, int64_t row) {
  const int64_t begin = layout.doc_begin == nullptr ? 0 : layout.doc_begin[row];
  return row % layout.length - begin;
}

// Everything that the values of tokens and layout can have wrong; the checks before it have made
// sure that they can be read.
absl::Status CheckTokens(const char* operation, const SequenceLayout& layout, const int32_t* tokens,
                         int64_t vocab, bool positions, int64_t max_positions) {
  for (int64_t row = 0; row < layout.tokens(); ++row) {
    if (tokens[row] < 0 || tokens[row] >= vocab) {
      return absl::InvalidArgumentError(absl::StrCat(operation, ": row ", row, " has token ",
                                                     tokens[row], ", not in [0, ", vocab, ")"));
    }
    if (!positions) continue;
    const int64_t position = PositionOf(layout, row);
    if (position < 0 || position >= max_positions) {
      return absl::InvalidArgumentError(absl::StrCat(operation, ": row ", row, " has position ",
                                                     position, ", not in [0, ", max_positions,
                                                     ")"));
    }
  }
  return absl::OkStatus();
}

// What both passes share. `matrix` is out or dout, `table` either's table.
template <class Request, class Matrix>
absl::Status Check(const char* operation, const Request& request, const char* matrix_name,
                   const Matrix& matrix, const char* table_name, const float* table,
                   bool positions) {
  const SequenceLayout& layout = request.layout;
  absl::Status status = OperandCheck(operation)
                            .That(layout.sequences >= 0 && layout.length >= 0, "layout is of ",
                                  layout.sequences, " sequences of length ", layout.length)
                            .That(layout.tokens() <= std::numeric_limits<int32_t>::max(),
                                  "layout has ", layout.tokens(), " tokens, above 2^31 - 1")
                            .Shape(matrix_name, matrix, layout.tokens(), matrix.cols)
                            .Pointer("tokens", request.tokens, layout.tokens())
                            .That(request.vocab >= 0, "vocab is ", request.vocab, ", below 0")
                            .Pointer(table_name, table, request.vocab * matrix.cols)
                            .status();
  if (!status.ok()) return status;
  return CheckTokens(operation, layout, request.tokens, request.vocab, positions,
                     request.max_positions);
}

}  // namespace

CpuTokenOps::CpuTokenOps(ThreadPool& pool, cpu::LayerIsa isa)
    : pool_(pool), kernels_(cpu::TokenKernelsFor(isa)) {}

absl::Status CpuTokenOps::Forward(const EmbeddingForward& request) {
  const MutableMatrix& out = request.out;
  const absl::Status status = Check("embedding forward", request, "out", out, "table",
                                    request.table, request.positions != nullptr);
  if (!status.ok()) return status;
  const Blocks blocks = cpu::RowBlocks(out.rows, out.cols, kTaskElements);
  pool_.ParallelFor(blocks.count(), [&](int64_t block, int) {
    for (int64_t row = blocks.begin(block); row < blocks.end(block); ++row) {
      const float* position = request.positions == nullptr
                                  ? nullptr
                                  : request.positions + PositionOf(request.layout, row) * out.cols;
      kernels_.embed[Index(out.dtype)](
          request.table + request.tokens[row] * out.cols, position, out.cols,
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
      kernels_.add_rows[Index(from.dtype)](from, group.rows, group.count, across.begin(span),
                                           across.end(span), table + group.key * from.cols);
    }
  });
}

absl::Status CpuTokenOps::Backward(const EmbeddingBackward& request) {
  const ConstMatrix& dout = request.dout;
  const absl::Status status = Check("embedding backward", request, "dout", dout, "dtable",
                                    request.dtable, request.dpositions != nullptr);
  if (!status.ok()) return status;
  AddByKey(dout, request.tokens, request.vocab, request.dtable);
  if (request.dpositions == nullptr) return absl::OkStatus();
  int32_t* positions = positions_.Get(dout.rows);
  for (int64_t row = 0; row < dout.rows; ++row) {
    positions[row] = static_cast<int32_t>(PositionOf(request.layout, row));
  }
  AddByKey(dout, positions, request.max_positions, request.dpositions);
  return absl::OkStatus();
}

absl::Status CpuTokenOps::Run(const CrossEntropy& request) {
  const ConstMatrix& logits = request.logits;
  const MutableMatrix& dlogits = request.dlogits;
  OperandCheck check("cross entropy");
  check.Present("logits", logits)
      .Pointer("targets", request.targets, logits.rows)
      .Pointer("loss", request.loss, logits.rows)
      .That(std::isfinite(request.scale), "scale is ", request.scale);
  if (dlogits.data != nullptr) {
    check.Shape("dlogits", dlogits, logits.rows, logits.cols)
        .That(dlogits.data != logits.data ||
                  (dlogits.dtype == logits.dtype && dlogits.stride == logits.stride),
              "dlogits lies on logits but not element on element: ",
              cpu::Describe(cpu::View(dlogits)), ", stride ", dlogits.stride, " on ",
              cpu::Describe(logits), ", stride ", logits.stride);
  }
  if (!check.status().ok()) return check.status();
  for (int64_t row = 0; row < logits.rows; ++row) {
    const int32_t target = request.targets[row];
    if (target < -1 || target >= logits.cols) {
      return absl::InvalidArgumentError(absl::StrCat("cross entropy: row ", row, " has target ",
                                                     target, ", not in [-1, ", logits.cols, ")"));
    }
  }

  const auto kernel = kernels_.cross_entropy[Index(logits.dtype)][Index(dlogits.dtype)];
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
