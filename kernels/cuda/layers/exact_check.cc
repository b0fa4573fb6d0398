#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/instructions.h"
#include "kernels/cuda/layers/check_vector.h"
#include "kernels/cuda/layers/cuda_elementwise_ops.h"
#include "kernels/cuda/layers/cuda_optimizer_ops.h"
#include "kernels/cuda/layers/cuda_step_ops.h"
#include "kernels/cuda/layers/cuda_token_ops.h"
#include "kernels/cuda/layers/row_check.h"
#include "kernels/formats/bfloat16.h"

namespace nibble {
namespace {

std::vector<float> Values(LayerCheck& check, int64_t n, bool positive = false) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = positive ? std::abs(check.Normal()) : check.Normal();
  return values;
}

// Of every BF16: what the quantisers compute in its place (QuantizeRequest::squared_relu).
void CheckSquaredRelu(LayerCheck& check) {
  constexpr int64_t kCodes = 65536;
  std::vector<uint16_t> codes(kCodes);
  for (int64_t i = 0; i < kCodes; ++i) codes[i] = static_cast<uint16_t>(i);
  CheckVector<uint16_t> in(check.cuda(), codes), out(check.cuda(), kCodes);
  CudaElementwiseOps ops(check.cuda());
  check.ExpectOk("squared relu", ops.Forward(ActivationForward{
                                     .in = ConstMatrix::OfBf16(in.device(), 1, kCodes),
                                     .out = MutableMatrix::OfBf16(out.device(), 1, kCodes)}));
  const std::vector<uint16_t> got = out.OfDevice();
  int64_t wrong = 0;
  for (int64_t i = 0; i < kCodes; ++i) {
    const auto expected = static_cast<uint16_t>(gpu::SquaredRelu(codes[i]));
    const bool nan = std::isnan(DecodeBf16(codes[i]));
    if (nan ? !std::isnan(DecodeBf16(got[i])) : got[i] != expected) ++wrong;
  }
  check.Expect(wrong == 0, absl::StrCat("squared relu: ", wrong, " of all BF16 are others"));
}

void CheckAdamW(LayerCheck& check, int64_t n) {
  CudaBackend& cuda = check.cuda();
  CudaOptimizerOps ops(cuda);
  CheckVector<float> param(cuda, Values(check, n)), m(cuda, Values(check, n)),
      v(cuda, Values(check, n, true));
  std::vector<float> gradients = Values(check, n);
  gradients[0] = 3e38f;
  if (n > 2) gradients[2] = std::numeric_limits<float>::infinity();
  CheckVector<float> grad(cuda, gradients);
  CheckVector<uint16_t> bf16(cuda, n, 0x1234);
  CheckVector<float> amax(cuda, 1, -1.0f);
  for (const uint32_t update : {0u, 1u}) {
    CheckVector<StepOutcome> outcome(cuda, {StepOutcome{.scale = 0.37f, .update = update}});
    // Two runs, of which the second has copies and is not aligned if the first is short.
    const int64_t second = n / 3;
    const auto runs = [&](auto of) {
      AdamWRun whole = {
          .n = n, .param = of(param), .m = of(m), .v = of(v), .grad = of(grad), .decay = 0.1f};
      AdamWRun tail = whole;
      whole.n = second;
      tail.n -= second;
      for (float** begin : {&tail.param, &tail.m, &tail.v}) *begin += second;
      tail.grad += second;
      tail.bf16 = of(bf16);
      tail.amax = of(amax);
      return std::vector<AdamWRun>{whole, tail};
    };
    const std::vector<AdamWRun> host = runs([](auto& vector) { return vector.host(); });
    const std::vector<AdamWRun> device = runs([](auto& vector) { return vector.device(); });
    AdamW request = {.runs = host,
                     .outcome = outcome.host(),
                     .lr = 3e-4f,
                     .correction1 = 0.19f,
                     .correction2 = 0.0975f};
    check.ExpectOk("adamw", check.cpu().optimizer().Run(request));
    request.runs = device;
    request.outcome = outcome.device();
    check.ExpectOk("adamw", ops.Run(request));
    const std::vector<float> updated = param.OfDevice();
    float largest = 0;
    int64_t wrong = 0;
    const std::vector<uint16_t> rounded = bf16.OfDevice();
    for (int64_t i = second; i < n; ++i) {
      if (!std::isnan(updated[i])) largest = std::max(largest, std::abs(updated[i]));
      const uint16_t got = rounded[i - second];
      // A NaN may be any.
      const bool right = update == 0              ? got == 0x1234
                         : std::isnan(updated[i]) ? std::isnan(DecodeBf16(got))
                                                  : got == EncodeBf16(updated[i]);
      wrong += right ? 0 : 1;
    }
    check.Expect(wrong == 0, absl::StrCat("adamw of ", n, " elements, update ", update, ": ", wrong,
                                          " of BF16 are not its weights'"));
    check.Expect(amax.OfDevice()[0] == (update != 0 ? largest : -1.0f),
                 absl::StrCat("adamw of ", n, " elements, update ", update, ": amax is ",
                              amax.OfDevice()[0], ", not ", largest));
    // The CPU fuses multiplications and additions where it can.
    const double distance = std::max({param.Distance(), m.Distance(), v.Distance()});
    check.Expect(distance < 1e-6, absl::StrCat("adamw of ", n, " elements, update ", update, ": ",
                                               distance, " from the CPU's"));
  }
}

void CheckSumOfSquares(LayerCheck& check, int64_t n) {
  CudaBackend& cuda = check.cuda();
  CudaOptimizerOps ops(cuda);
  CheckVector<float> x(cuda, Values(check, n));
  CheckVector<double> sum(cuda, 1, 0.125);
  for (const bool add : {true, false}) {
    check.ExpectOk("sum of squares", check.cpu().optimizer().Run(SumOfSquares{
                                         .x = x.host(), .n = n, .sum = sum.host(), .add = add}));
    check.ExpectOk("sum of squares",
                   ops.Run(SumOfSquares{.x = x.device(), .n = n, .sum = sum.device(), .add = add}));
    check.Expect(sum.SameBits(), absl::StrCat("sum of squares of ", n, " elements"));
  }
}

void CheckStepNumbers(LayerCheck& check, int64_t n) {
  CudaBackend& cuda = check.cuda();
  CudaStepOps ops(cuda);
  CheckVector<float> losses(cuda, Values(check, n));
  std::vector<int32_t> some(static_cast<size_t>(n), 3);
  for (size_t i = 0; i < some.size(); i += 3) some[i] = -1;
  CheckVector<int32_t> targets(cuda, some);
  CheckVector<StepNumbers> numbers(cuda, {StepNumbers{.loss = 0.5, .squares = 4}});
  check.ExpectOk(
      "losses",
      check.cpu().step().Run(AddLosses{
          .x = losses.host(), .targets = targets.host(), .n = n, .numbers = numbers.host()}));
  check.ExpectOk(
      "losses",
      ops.Run(AddLosses{
          .x = losses.device(), .targets = targets.device(), .n = n, .numbers = numbers.device()}));
  check.Expect(numbers.SameBits(), absl::StrCat("losses of ", n, " tokens"));
  CheckVector<StepOutcome> outcome(cuda, 1);
  Judge judge = {.numbers = numbers.host(),
                 .world = 1,
                 .max_norm = 1,
                 .loss_bound = 1e9,
                 .outcome = outcome.host()};
  check.ExpectOk("judge", check.cpu().step().Run(judge));
  judge.numbers = numbers.device();
  judge.outcome = outcome.device();
  check.ExpectOk("judge", ops.Run(judge));
  check.Expect(outcome.SameBits(), "the outcome of a step");
}

void CheckInitialValues(LayerCheck& check) {
  CudaBackend& cuda = check.cuda();
  CudaElementwiseOps ops(cuda);
  for (const Init init : {Init::kZeros, Init::kOnes, Init::kNormal, Init::kUniform, Init::kMambaDt,
                          Init::kMambaDecay}) {
    CheckVector<float> out(cuda, 4099, 7.0f);
    FillInitial request = {.init = init,
                           .scale = 0.02,
                           .random = {.seed = 5, .stream = 9},
                           .n = out.size(),
                           .out = out.host()};
    check.ExpectOk("initial values", check.cpu().elementwise().Run(request));
    request.out = out.device();
    check.ExpectOk("initial values", ops.Run(request));
    check.Expect(out.SameBits(), absl::StrCat("initial values ", static_cast<int>(init)));
  }
}

void CheckEmbedding(LayerCheck& check, int64_t sequences, int64_t length, int64_t d, int64_t vocab,
                    bool positions) {
  CudaBackend& cuda = check.cuda();
  CudaTokenOps ops(cuda);
  const int64_t rows = sequences * length;
  const std::string name = absl::StrCat("embedding of [", rows, ", ", d, "], vocabulary ", vocab,
                                        positions ? ", positions" : "");
  std::vector<int32_t> drawn(static_cast<size_t>(rows));
  for (int32_t& token : drawn) {
    // Half of the tokens are the first of the vocabulary: a long run.
    token = static_cast<int32_t>(check.random()() % 2 == 0 ? 0 : check.random()() % vocab);
  }
  CheckVector<int32_t> tokens(cuda, drawn);
  CheckVector<float> table(cuda, Values(check, vocab * d)), at(cuda, Values(check, length * d));
  CheckVector<float> out(cuda, rows * d), dout(cuda, Values(check, rows * d));
  CheckVector<float> dtable(cuda, vocab * d, 1.0f), dpositions(cuda, length * d, 1.0f);
  const SequenceLayout layout = {.sequences = sequences, .length = length};
  const auto backward = [&](bool device) {
    const auto vector = [&](CheckVector<float>& v) { return device ? v.device() : v.host(); };
    return EmbeddingBackward{.layout = layout,
                             .tokens = device ? tokens.device() : tokens.host(),
                             .vocab = vocab,
                             .dout = ConstMatrix::Of(vector(dout), rows, d),
                             .dtable = vector(dtable),
                             .max_positions = length,
                             .dpositions = positions ? vector(dpositions) : nullptr};
  };
  const auto run = [&](TokenOps& token, bool device) {
    const auto vector = [&](CheckVector<float>& v) { return device ? v.device() : v.host(); };
    const int32_t* const ids = device ? tokens.device() : tokens.host();
    check.ExpectOk(
        name, token.Forward(EmbeddingForward{
                  .layout = layout,
                  .tokens = ids,
                  .table = ConstMatrix::Of(vector(table), vocab, d),
                  .positions = positions ? ConstMatrix::Of(vector(at), length, d) : ConstMatrix(),
                  .out = MutableMatrix::Of(vector(out), rows, d)}));
    check.ExpectOk(name, token.Backward(backward(device)));
  };
  run(check.cpu().token(), false);
  check.ExpectKeeps(name, ops.ScratchBytes(backward(true)), [&] { run(ops, true); });
  check.Expect(out.SameBits(), name);
  // BF16 outputs read the tables' rounding.
  CheckVector<uint16_t> rounded(cuda, rows * d);
  for (const bool device : {false, true}) {
    const auto vector = [&](auto& v) { return device ? v.device() : v.host(); };
    TokenOps& token = device ? static_cast<TokenOps&>(ops) : check.cpu().token();
    check.ExpectOk(
        name, token.Forward(EmbeddingForward{
                  .layout = layout,
                  .tokens = vector(tokens),
                  .table = ConstMatrix::Of(vector(table), vocab, d),
                  .positions = positions ? ConstMatrix::Of(vector(at), length, d) : ConstMatrix(),
                  .out = MutableMatrix::OfBf16(vector(rounded), rows, d)}));
  }
  check.Expect(rounded.SameBits(), absl::StrCat(name, " in BF16"));
  check.Expect(dtable.Distance() < 2e-6, absl::StrCat(name, ", dtable ", dtable.Distance()));
  if (positions) {
    check.Expect(dpositions.Distance() < 2e-6, absl::StrCat(name, ", dpositions"));
  }
  const std::vector<float> first = dtable.OfDevice();
  CheckVector<float> again(cuda, vocab * d, 1.0f);
  check.ExpectOk(
      name, ops.Backward(EmbeddingBackward{.layout = {.sequences = sequences, .length = length},
                                           .tokens = tokens.device(),
                                           .vocab = vocab,
                                           .dout = ConstMatrix::Of(dout.device(), rows, d),
                                           .dtable = again.device()}));
  check.Expect(again.OfDevice() == first, absl::StrCat(name, ": two runs have the same bits"));
}

void CheckEntropy(LayerCheck& check, int64_t rows, int64_t vocab, DType dtype) {
  CudaBackend& cuda = check.cuda();
  CudaTokenOps ops(cuda);
  const std::string name = absl::StrCat("cross entropy of [", rows, ", ", vocab, "]");
  CheckTensor logits(cuda, rows, vocab, [&](int64_t, int64_t) { return 5 * check.Normal(); });
  CheckTensor dlogits(cuda, rows, vocab);
  std::vector<int32_t> drawn(static_cast<size_t>(rows));
  for (int32_t& target : drawn) {
    target = static_cast<int32_t>(check.random()() % static_cast<uint64_t>(vocab + 1)) - 1;
  }
  CheckVector<int32_t> targets(cuda, drawn);
  CheckVector<float> loss(cuda, rows), spare(cuda, rows);
  const auto request = [&](const MutableMatrix& in, const MutableMatrix& out, bool device,
                           CheckVector<float>& of) {
    return CrossEntropy{.logits = Const(in),
                        .targets = device ? targets.device() : targets.host(),
                        .loss = device ? of.device() : of.host(),
                        .scale = 0.25f,
                        .dlogits = out};
  };
  check.ExpectOk(name, check.cpu().token().Run(request(logits.f32(), dlogits.f32(), false, loss)));
  check.ExpectOk(name,
                 check.cpu().token().Run(request(logits.f32(), dlogits.bf16(), false, spare)));
  check.ExpectOk(name, ops.Run(request(logits.device(dtype), dlogits.device(), true, loss)));
  check.ExpectClose(name, dlogits);
  check.Expect(loss.Distance() < 1e-6, absl::StrCat(name, ", loss ", loss.Distance()));
}

}  // namespace

void CheckExact(LayerCheck& check) {
  CheckSquaredRelu(check);
  for (const int64_t n : {1, 7, 8, 1000, 70001}) CheckAdamW(check, n);
  for (const int64_t n : {1, 15, 16, 65536, 65537, 200003}) CheckSumOfSquares(check, n);
  for (const int64_t n : {1, 1023, 5000}) CheckStepNumbers(check, n);
  CheckInitialValues(check);
}

void CheckTokens(LayerCheck& check) {
  CheckEmbedding(check, 1, 1, 1, 1, false);
  CheckEmbedding(check, 3, 50, 24, 11, true);
  CheckEmbedding(check, 2, 333, 31, 500, true);
  CheckEmbedding(check, 5, 1000, 16, 900, false);
  CheckEmbedding(check, 1, 5000, 16, 3, false);
  CheckEntropy(check, 1, 1, DType::kF32);
  CheckEntropy(check, 5, 257, DType::kF32);
  CheckEntropy(check, 4, 8192, DType::kF32);
  CheckEntropy(check, 3, 10007, DType::kF32);
  // More than a thread block keeps of a row.
  CheckEntropy(check, 2, 65552, DType::kF32);
}

}  // namespace nibble
