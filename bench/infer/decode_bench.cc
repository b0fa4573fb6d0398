// Tokens per second of decoding and of prompts, each beside its limit measured in the same run:
//   decode   copying as many bytes as the weights that a token reads (one sequence, and several
//            that share each read)
//   prefill  the matmul of the model's largest linear alone, with the prompt's rows
//
// Counters: tokens/s; GB/s of weights, memcpy_GB/s and of_memcpy; GFLOP/s of matmuls, gemm_GFLOP/s
// and of_gemm. Ratios are medians over iterations.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/alternate.h"
#include "bench/limits.h"
#include "kernels/gemm/cpu_gemm.h"
#include "model/outline.h"
#include "worker/infer/decoder.h"
#include "worker/weights/weight_source.h"

namespace nibble::bench {
namespace {

// Weights of plausible size; the speed does not depend on their values.
class SomeWeights : public WeightSource {
 public:
  explicit SomeWeights(const std::string& preset) : outline_(*MakeOutline(*ModelPreset(preset))) {}

  std::string description() const override { return "weights for a benchmark"; }
  const Outline& outline() const override { return outline_; }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return nullptr; }
  absl::Status Read(const ParamInfo& param, absl::Span<float> out) override {
    uint32_t state = 12345;
    const bool matrix = param.init == Init::kNormal;
    for (float& x : out) {
      state = state * 1664525u + 1013904223u;
      const float uniform = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
      x = matrix ? 0.07f * uniform : 0.5f + uniform;
    }
    return absl::OkStatus();
  }

 private:
  Outline outline_;
};

struct Case {
  std::string preset;
  DType precision;
};

// Keeps one decoder at a time: models are large.
Decoder* DecoderOf(const Case& of) {
  static std::string name;
  static std::unique_ptr<Decoder> decoder;
  const std::string wanted = absl::StrCat(of.preset, static_cast<int>(of.precision));
  if (name == wanted) return decoder.get();
  decoder.reset();
  SomeWeights weights(of.preset);
  auto made = Decoder::Create(weights, {.precision = of.precision, .max_sequence = 1024});
  if (!made.ok()) return nullptr;
  decoder = *std::move(made);
  name = wanted;
  return decoder.get();
}

constexpr int64_t kContext = 256;
constexpr int64_t kTokensOfIteration = 8;

std::vector<int32_t> Prompt(const Decoder& decoder) {
  std::vector<int32_t> tokens(kContext);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(decoder.vocab()));
  }
  return tokens;
}

void Decode(benchmark::State& state, const Case& of, int64_t sequences) {
  Decoder* decoder = DecoderOf(of);
  if (decoder == nullptr) return state.SkipWithError("no decoder");
  std::vector<std::unique_ptr<SequenceState>> prompts, states;
  std::vector<Decoder::Piece> running;
  const int32_t token = 3;
  const auto drop = [](absl::Span<const Decoder::Place>, float*) { return absl::OkStatus(); };
  for (int64_t i = 0; i < sequences; ++i) {
    prompts.push_back(*decoder->NewSequence(kContext));
    states.push_back(*decoder->NewSequence(kContext + kTokensOfIteration));
    running.push_back({states.back().get(), {&token, 1}});
    if (!decoder->Prefill(*prompts.back(), Prompt(*decoder), {}).ok()) {
      return state.SkipWithError("refused");
    }
  }
  absl::Status status;
  const Alternated times =
      AlternateWithMemcpy(state, *decoder->device().pool(), decoder->weight_bytes_per_token(), [&] {
        for (int64_t i = 0; i < sequences; ++i) {
          status.Update(decoder->CopySequence(*prompts[i], *states[i]));
        }
        const double seconds = Seconds([&] {
          for (int64_t t = 0; t < kTokensOfIteration; ++t) {
            status.Update(decoder->Run(running, Decoder::Wanted::kLast, drop));
          }
        });
        return seconds / kTokensOfIteration;
      });
  SkipUnlessOk(state, status);
  state.counters["tokens/s"] = static_cast<double>(sequences) / times.own;
}

void Prefill(benchmark::State& state, const Case& of) {
  Decoder* decoder = DecoderOf(of);
  if (decoder == nullptr) return state.SkipWithError("no decoder");
  const std::vector<int32_t> prompt = Prompt(*decoder);
  const Outline& outline = decoder->outline();
  const LinearInfo& largest =
      *std::max_element(outline.linears.begin(), outline.linears.end(),
                        [](const auto& a, const auto& b) { return a.in * a.out < b.in * b.out; });
  const int64_t element = DTypeBytes(of.precision);
  std::vector<char> x(kContext * largest.in * element), w(largest.out * largest.in * element),
      y(kContext * largest.out * element);
  auto gemm = *CpuGemm::Create(*decoder->device().pool(), {});
  absl::Status status;
  const auto product = [&] {
    const ConstMatrix a = {x.data(), of.precision, kContext, largest.in, largest.in};
    const ConstMatrix b = {w.data(), of.precision, largest.out, largest.in, largest.in};
    const MutableMatrix c = {y.data(), of.precision, kContext, largest.out, largest.out};
    status.Update(gemm->Gemm(Fprop(a, b, c)));
  };
  product();
  const double product_flops =
      2.0 * kContext * static_cast<double>(largest.in) * static_cast<double>(largest.out);
  // The head runs for one token only.
  const FlopsPerToken per_token = CountFlops(outline, kContext);
  const double flops = (per_token.forward() - per_token.head) * kContext + per_token.head;
  std::vector<float> logits(static_cast<size_t>(decoder->vocab()));
  // The product's time for as many operations as the prompt needs.
  const Alternated times = Alternate(
      state, [&] { return Seconds(product) * flops / product_flops; },
      [&] {
        auto sequence = *decoder->NewSequence(kContext);
        return Seconds(
            [&] { status.Update(decoder->Prefill(*sequence, prompt, absl::MakeSpan(logits))); });
      });
  SkipUnlessOk(state, status);
  state.counters["tokens/s"] = kContext / times.own;
  state.counters["GFLOP/s"] = flops / times.own / 1e9;
  state.counters["gemm_GFLOP/s"] = flops / times.limit / 1e9;
  state.counters["of_gemm"] = times.ratio;
}

void RegisterAll() {
  for (const Case& of : {Case{"small-hybrid", DType::kBf16}, Case{"gpt2-125m", DType::kBf16},
                         Case{"gpt2-125m", DType::kF32}, Case{"llama-125m", DType::kBf16},
                         Case{"transformer-1.2b", DType::kBf16}}) {
    const std::string name =
        absl::StrCat(of.preset, "/", of.precision == DType::kBf16 ? "bf16" : "fp32");
    const auto add = [&](const std::string& what, auto run) {
      benchmark::RegisterBenchmark(absl::StrCat(name, "/", what).c_str(), run)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond)
          ->MinTime(0.5);
    };
    for (const int64_t sequences : {1, 4, 8}) {
      add(absl::StrCat("decode/", sequences),
          [of, sequences](benchmark::State& state) { Decode(state, of, sequences); });
    }
    add("prefill", [of](benchmark::State& state) { Prefill(state, of); });
  }
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  nibble::bench::RegisterAll();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
