// Embedding and cross entropy with the vocabulary of GPT-2 and a larger one, against memcpy.
// Cross entropy also computes two exponentials per logit, which a copy does not.
#include <random>
#include <string>
#include <vector>

#include "bench/layers/layer_bench.h"
#include "kernels/cpu/layers/cpu_token_ops.h"

namespace nibble::bench {
namespace {

constexpr int64_t kTokens = 4096;
constexpr int64_t kWidth = 2048;
constexpr int64_t kVocab = 50257;
constexpr int64_t kLossRows = 256;

// As in text, few tokens make up most of it.
std::vector<int32_t> Tokens() {
  std::vector<int32_t> tokens(kTokens);
  std::mt19937_64 random(1);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % (random() % kVocab + 1));
  return tokens;
}

void Add(const OpsBench<CpuTokenOps>& bench) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    bench.Add("embedding/forward/" + TypeName(dtype), [=](CpuTokenOps& ops,
                                                          const Against& against) {
      const std::vector<int32_t> tokens = Tokens();
      const std::vector<float> table(kVocab * kWidth, 1);
      Operand out(dtype, kTokens, kWidth);
      against(out.size() + kTokens * kWidth * 4, [&] {
        return ops.Forward(EmbeddingForward{.layout = {1, kTokens},
                                            .tokens = tokens.data(),
                                            .table = ConstMatrix::Of(table.data(), kVocab, kWidth),
                                            .out = out.out});
      });
    });
    bench.Add(
        "embedding/backward/" + TypeName(dtype), [=](CpuTokenOps& ops, const Against& against) {
          const std::vector<int32_t> tokens = Tokens();
          std::vector<float> dtable(kVocab * kWidth);
          Operand dout(dtype, kTokens, kWidth);
          against(dout.size() + 2 * kTokens * kWidth * 4, [&] {
            return ops.Backward(
                EmbeddingBackward{{1, kTokens}, tokens.data(), kVocab, dout.in, dtable.data()});
          });
        });
    for (const int64_t vocab : {kVocab, int64_t{131072}}) {
      bench.Add(
          "cross_entropy/" + std::to_string(vocab) + "/" + TypeName(dtype),
          [=](CpuTokenOps& ops, const Against& against) {
            Operand logits(dtype, kLossRows, vocab), dlogits(dtype, kLossRows, vocab);
            const std::vector<int32_t> targets(kLossRows, 7);
            std::vector<float> loss(kLossRows);
            against(2 * logits.size(), [&] {
              return ops.Run(CrossEntropy{logits.in, targets.data(), loss.data(), 1, dlogits.out});
            });
          });
    }
  }
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  return nibble::bench::RunOpsBench(argc, argv, nibble::bench::Add);
}
