// Embedding and cross entropy with the vocabulary of GPT-2 and a larger one, against memcpy.
// Cross entropy also computes two exponentials per logit, which a copy does not.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "bench/layers/against_memcpy.h"
#include "bench/layers/operand.h"
#include "common/thread_pool.h"
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

void RegisterAll(ThreadPool& pool, cpu::LayerIsa isa) {
  const std::string set(cpu::Name(isa));
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    Register(
        ("embedding/forward/" + TypeName(dtype) + "/" + set).c_str(),
        [=, &pool](benchmark::State& state) {
          CpuTokenOps ops(pool, isa);
          const std::vector<int32_t> tokens = Tokens();
          const std::vector<float> table(kVocab * kWidth, 1);
          Operand out(dtype, kTokens, kWidth);
          AgainstMemcpy(state, pool, out.size() + kTokens * kWidth * 4, [&] {
            return ops
                .Forward(EmbeddingForward{.layout = {1, kTokens},
                                          .tokens = tokens.data(),
                                          .table = ConstMatrix::Of(table.data(), kVocab, kWidth),
                                          .out = out.out})
                .ok();
          });
        });
    Register(("embedding/backward/" + TypeName(dtype) + "/" + set).c_str(),
             [=, &pool](benchmark::State& state) {
               CpuTokenOps ops(pool, isa);
               const std::vector<int32_t> tokens = Tokens();
               std::vector<float> dtable(kVocab * kWidth);
               Operand dout(dtype, kTokens, kWidth);
               AgainstMemcpy(state, pool, dout.size() + 2 * kTokens * kWidth * 4, [&] {
                 return ops
                     .Backward(EmbeddingBackward{
                         {1, kTokens}, tokens.data(), kVocab, dout.in, dtable.data()})
                     .ok();
               });
             });
    for (const int64_t vocab : {kVocab, int64_t{131072}}) {
      Register(
          ("cross_entropy/" + std::to_string(vocab) + "/" + TypeName(dtype) + "/" + set).c_str(),
          [=, &pool](benchmark::State& state) {
            CpuTokenOps ops(pool, isa);
            Operand logits(dtype, kLossRows, vocab), dlogits(dtype, kLossRows, vocab);
            const std::vector<int32_t> targets(kLossRows, 7);
            std::vector<float> loss(kLossRows);
            AgainstMemcpy(state, pool, 2 * logits.size(), [&] {
              return ops.Run(CrossEntropy{logits.in, targets.data(), loss.data(), 1, dlogits.out})
                  .ok();
            });
          });
    }
  }
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  nibble::ThreadPool pool(0);
  for (const nibble::cpu::LayerIsa isa : nibble::cpu::SupportedLayerIsas()) {
    nibble::bench::RegisterAll(pool, isa);
  }
  benchmark::RunSpecifiedBenchmarks();
}
