#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/layers/check_vector.h"
#include "kernels/cuda/layers/cuda_elementwise_ops.h"
#include "kernels/cuda/layers/cuda_norm_ops.h"
#include "kernels/cuda/layers/cuda_optimizer_ops.h"
#include "kernels/cuda/layers/cuda_token_ops.h"
#include "kernels/cuda/layers/row_check.h"

namespace nibble {
namespace {

// Tensors of a measurement: more than the second-level cache holds.
class Pool {
 public:
  Pool(CudaBackend& cuda, int64_t bytes) : bytes_(bytes) {
    const int64_t count = (int64_t{256} << 20) / bytes + 2;
    for (int64_t i = 0; i < count; ++i) {
      buffers_.push_back(*cuda.memory().Allocate(static_cast<size_t>(bytes)));
      (void)cuda.memory().Fill(buffers_.back().data(), 0x3c, static_cast<size_t>(bytes));
    }
  }
  template <class T>
  T* at(int64_t i) const {
    return buffers_[static_cast<size_t>(i) % buffers_.size()].data<T>();
  }
  ConstMatrix bf16(int64_t i, int64_t rows, int64_t cols) const {
    return ConstMatrix::OfBf16(at<uint16_t>(i), rows, cols);
  }
  MutableMatrix out(int64_t i, int64_t rows, int64_t cols) const {
    return MutableMatrix::OfBf16(at<uint16_t>(i), rows, cols);
  }
  // Rows `stride` elements apart.
  MutableMatrix columns(int64_t i, int64_t rows, int64_t cols, int64_t stride) const {
    return {at<uint16_t>(i), DType::kBf16, rows, cols, stride};
  }

 private:
  int64_t bytes_;
  std::vector<Buffer> buffers_;
};

std::string Shape(const char* name, int64_t rows, int64_t cols) {
  return std::string(name) + " [" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
}

void TimeNorm(LayerCheck& check, int64_t rows, int64_t d) {
  CudaNormOps ops(check.cuda());
  const Pool pool(check.cuda(), rows * d * 2);
  CheckVector<float> weight(check.cuda(), d, 1.0f), rstd(check.cuda(), rows, 1.0f),
      dweight(check.cuda(), d);
  const auto bytes = static_cast<double>(rows * d * 2);
  check.Time(Shape("add, norm", rows, d), 4 * bytes, 0, [&](int i) {
    return ops.Forward(AddNormForward{.norm = {.weight = weight.device()},
                                      .x = pool.bf16(4 * i, rows, d),
                                      .y = pool.bf16(4 * i + 1, rows, d),
                                      .sum = pool.out(4 * i + 2, rows, d),
                                      .out = pool.out(4 * i + 3, rows, d),
                                      .rstd = rstd.device()});
  });
  check.Time(Shape("norm backward", rows, d), 4 * bytes, 0, [&](int i) {
    return ops.Backward(NormBackward{.norm = {.weight = weight.device()},
                                     .x = pool.bf16(4 * i, rows, d),
                                     .dout = pool.bf16(4 * i + 1, rows, d),
                                     .residual = pool.bf16(4 * i + 2, rows, d),
                                     .rstd = rstd.device(),
                                     .dx = pool.out(4 * i + 3, rows, d),
                                     .dweight = dweight.device()});
  });
}

// z and dz are columns of projections of `projected` columns, as in the Mamba-2 block.
void TimeGatedNorm(LayerCheck& check, int64_t rows, int64_t d, int groups, int64_t projected) {
  CudaNormOps ops(check.cuda());
  const Pool pool(check.cuda(), rows * d * 2), projections(check.cuda(), rows * projected * 2);
  CheckVector<float> weight(check.cuda(), d, 1.0f), rstd(check.cuda(), rows * groups, 1.0f),
      dweight(check.cuda(), d);
  const auto bytes = static_cast<double>(rows * d * 2);
  const std::string in_groups = " in " + std::to_string(groups) + " groups";
  check.Time(Shape("gated norm", rows, d) + in_groups, 3 * bytes, 0, [&](int i) {
    return ops.Forward(GatedNormForward{.groups = groups,
                                        .weight = weight.device(),
                                        .y = pool.bf16(2 * i, rows, d),
                                        .z = Const(projections.columns(i, rows, d, projected)),
                                        .out = pool.out(2 * i + 1, rows, d),
                                        .rstd = rstd.device()});
  });
  check.Time(Shape("gated norm backward", rows, d) + in_groups, 5 * bytes, 0, [&](int i) {
    return ops.Backward(
        GatedNormBackward{.groups = groups,
                          .weight = weight.device(),
                          .y = pool.bf16(3 * i, rows, d),
                          .z = Const(projections.columns(2 * i, rows, d, projected)),
                          .dout = pool.bf16(3 * i + 1, rows, d),
                          .rstd = rstd.device(),
                          .dy = pool.out(3 * i + 2, rows, d),
                          .dz = projections.columns(2 * i + 1, rows, d, projected),
                          .dweight = dweight.device()});
  });
}

void TimeActivation(LayerCheck& check, int64_t rows, int64_t d) {
  CudaElementwiseOps ops(check.cuda());
  const Pool pool(check.cuda(), rows * d * 2);
  const auto bytes = static_cast<double>(rows * d * 2);
  check.Time(Shape("squared relu", rows, d), 2 * bytes, 0, [&](int i) {
    return ops.Forward(
        ActivationForward{.in = pool.bf16(2 * i, rows, d), .out = pool.out(2 * i + 1, rows, d)});
  });
  check.Time(Shape("squared relu backward", rows, d), 3 * bytes, 0, [&](int i) {
    return ops.Backward(ActivationBackward{.in = pool.bf16(3 * i, rows, d),
                                           .dout = pool.bf16(3 * i + 1, rows, d),
                                           .din = pool.out(3 * i + 2, rows, d)});
  });
}

void TimeOptimizer(LayerCheck& check, int64_t n) {
  CudaOptimizerOps ops(check.cuda());
  const Pool pool(check.cuda(), n * 4);
  CheckVector<double> sum(check.cuda(), 1);
  check.Time("sum of squares of " + std::to_string(n), 4.0 * static_cast<double>(n), 0, [&](int i) {
    return ops.Run(SumOfSquares{.x = pool.at<float>(i), .n = n, .sum = sum.device()});
  });
  check.Time("adamw of " + std::to_string(n), 28.0 * static_cast<double>(n), 0, [&](int i) {
    const AdamWRun run = {.n = n,
                          .param = pool.at<float>(4 * i),
                          .m = pool.at<float>(4 * i + 1),
                          .v = pool.at<float>(4 * i + 2),
                          .grad = pool.at<float>(4 * i + 3)};
    return ops.Run(AdamW{.runs = {&run, 1}, .lr = 1e-4f});
  });
  const Pool copies(check.cuda(), n * 2);
  CheckVector<float> amax(check.cuda(), 1);
  check.Time("adamw with copy and amax of " + std::to_string(n), 30.0 * static_cast<double>(n), 0,
             [&](int i) {
               const AdamWRun run = {.n = n,
                                     .param = pool.at<float>(4 * i),
                                     .m = pool.at<float>(4 * i + 1),
                                     .v = pool.at<float>(4 * i + 2),
                                     .grad = pool.at<float>(4 * i + 3),
                                     .bf16 = copies.at<uint16_t>(i),
                                     .amax = amax.device()};
               return ops.Run(AdamW{.runs = {&run, 1}, .lr = 1e-4f});
             });
  CudaElementwiseOps elementwise(check.cuda());
  check.Time("cast of " + std::to_string(n), 6.0 * static_cast<double>(n), 0, [&](int i) {
    return elementwise.Run(Cast{.from = ConstMatrix::Of(pool.at<float>(2 * i), 1, n),
                                .to = pool.out(2 * i + 1, 1, n)});
  });
}

// How the tensors of a block arrive in a gather: one message per rank, in which parts of them
// follow each other. `together`: in one launch, otherwise each in a copy of its own.
void TimeMessage(LayerCheck& check, const std::string& name, const std::vector<int64_t>& tensors,
                 int64_t ranks, bool together) {
  CudaBackend& cuda = check.cuda();
  CudaElementwiseOps ops(cuda);
  const int64_t bytes = std::accumulate(tensors.begin(), tensors.end(), int64_t{0});
  const int64_t message = (bytes / ranks + 15) / 16 * 16;
  const Pool pool(cuda, ranks * message);
  const auto parts = [&](int64_t i) {
    std::vector<CopyParts::Part> all;
    int64_t at = 0;
    for (const int64_t tensor : tensors) {
      for (int64_t left = tensor; left > 0;) {
        const int64_t taken = std::min(left, message - at % message);
        all.push_back({.to = pool.at<char>(2 * i) + at,
                       .from = pool.at<char>(2 * i + 1) + at,
                       .elements = taken});
        at += taken;
        left -= taken;
      }
    }
    return all;
  };
  const std::string how = together ? "together" : "one by one";
  check.Time(
      absl::StrCat(name, ", ", parts(0).size(), " parts of ", ranks, " ranks, ", how),
      2.0 * static_cast<double>(bytes), 0, [&](int i) -> absl::Status {
        const std::vector<CopyParts::Part> all = parts(i);
        if (together) return ops.Run(CopyParts{all});
        for (const CopyParts::Part& one : all) {
          const absl::Status copied = cuda.compute().Copy(
              {.to = one.to, .from = one.from, .line_bytes = static_cast<size_t>(one.elements)});
          if (!copied.ok()) return copied;
        }
        return absl::OkStatus();
      });
}

// The MLP of a model: its norm in FP32, its weights in BF16, or as codes and scales of NVFP4.
void TimeMessages(LayerCheck& check, const std::string& model, int64_t d, int64_t d_ff) {
  const int64_t weight = d * d_ff;
  for (const int64_t ranks : {2, 8}) {
    for (const bool together : {false, true}) {
      TimeMessage(check, absl::StrCat("message of an MLP of ", model, ", BF16"),
                  {4 * d, 2 * weight, 2 * weight}, ranks, together);
      TimeMessage(check, absl::StrCat("message of an MLP of ", model, ", NVFP4"),
                  {4 * d, weight / 2, weight / 256, weight / 2, weight / 256}, ranks, together);
    }
  }
}

void TimeTokens(LayerCheck& check, int64_t rows, int64_t d, int64_t vocab) {
  CudaBackend& cuda = check.cuda();
  CudaTokenOps ops(cuda);
  constexpr int64_t kChunk = 512;
  const Pool logits(cuda, kChunk * vocab * 4), dlogits(cuda, kChunk * vocab * 2);
  const Pool rows_of(cuda, rows * d * 2);
  std::vector<int32_t> drawn(static_cast<size_t>(rows));
  for (int32_t& token : drawn) {
    token = static_cast<int32_t>(check.random()() % static_cast<uint64_t>(vocab));
    if (check.random()() % 20 == 0) token = 7;  // as common as a comma
  }
  CheckVector<int32_t> tokens(cuda, drawn);
  CheckVector<float> loss(cuda, kChunk), table(cuda, vocab * d);
  check.Time(
      Shape("cross entropy", kChunk, vocab), 6.0 * static_cast<double>(kChunk * vocab), 0,
      [&](int i) {
        return ops.Run(CrossEntropy{.logits = ConstMatrix::Of(logits.at<float>(i), kChunk, vocab),
                                    .targets = tokens.device(),
                                    .loss = loss.device(),
                                    .dlogits = dlogits.out(i, kChunk, vocab)});
      });
  const auto bytes = static_cast<double>(rows * d);
  const SequenceLayout layout = {.sequences = 1, .length = rows};
  check.Time(Shape("embedding", rows, d), 6 * bytes, 0, [&](int i) {
    return ops.Forward(EmbeddingForward{.layout = layout,
                                        .tokens = tokens.device(),
                                        .table = ConstMatrix::Of(table.device(), vocab, d),
                                        .out = rows_of.out(i, rows, d)});
  });
  check.Time(Shape("embedding backward", rows, d), 10 * bytes, 0, [&](int i) {
    return ops.Backward(EmbeddingBackward{.layout = layout,
                                          .tokens = tokens.device(),
                                          .vocab = vocab,
                                          .dout = rows_of.bf16(i, rows, d),
                                          .dtable = table.device()});
  });
}

}  // namespace

void TimeRows(LayerCheck& check) {
  TimeNorm(check, 16384, 2048);
  TimeNorm(check, 65536, 768);
  TimeGatedNorm(check, 16384, 4096, 8, 10304);   // hybrid-1b
  TimeGatedNorm(check, 16384, 8192, 8, 18560);   // Nemotron-H 8B
  TimeGatedNorm(check, 16384, 10240, 8, 22656);  // Nemotron-H 12B
  TimeActivation(check, 16384, 6144);
  TimeActivation(check, 65536, 3072);
  TimeOptimizer(check, int64_t{1} << 26);
  TimeMessages(check, "the 1.2B", 2048, 6144);
  TimeMessages(check, "the 124M", 768, 3072);
  TimeTokens(check, 16384, 2048, 65536);
  TimeTokens(check, 65536, 768, 50304);
}

}  // namespace nibble
