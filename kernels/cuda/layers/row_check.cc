#include "kernels/cuda/layers/row_check.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/layers/check_vector.h"
#include "kernels/cuda/layers/cuda_elementwise_ops.h"
#include "kernels/cuda/layers/cuda_norm_ops.h"

namespace nibble {
namespace {

// Sums of gradients of vectors differ by the order of FP32 additions.
constexpr double kSumError = 3e-6;

struct Shape {
  int64_t rows, cols, stride;  // 0: cols
};
// Of one column, a centered norm has no gradient at all. Widths of one, two and eight eights per
// thread, whole eights and not, with gaps.
const Shape kShapes[] = {{1, 5, 0},     {3, 7, 9},     {5, 64, 0},    {33, 96, 104},
                         {17, 2048, 0}, {9, 100, 100}, {2, 4104, 0},  {3, 4099, 4100},
                         {2, 16392, 0}, {1100, 24, 0}, {64, 768, 776}};

std::function<float(int64_t, int64_t)> Normal(LayerCheck& check, float scale = 1) {
  return [&check, scale](int64_t, int64_t) { return scale * check.Normal(); };
}

std::vector<float> NormalVector(LayerCheck& check, int64_t n, float mean, float scale) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = mean + scale * check.Normal();
  return values;
}

void ExpectSum(LayerCheck& check, const std::string& name, CheckVector<float>& sum) {
  const double distance = sum.Distance();
  check.Expect(distance <= kSumError, absl::StrCat(name, ": ", distance, " from the CPU's"));
}

// The amax of what the card wrote.
float Largest(CheckTensor& tensor, const Shape& s) {
  float largest = 0;
  const std::vector<float> written = tensor.DeviceValues();
  const int64_t stride = s.stride == 0 ? s.cols : s.stride;
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int64_t c = 0; c < s.cols; ++c) {
      largest = std::max(largest, std::abs(written[static_cast<size_t>(r * stride + c)]));
    }
  }
  return largest;
}

void CheckAddNorm(LayerCheck& check, const Shape& s, bool centered, bool adds) {
  CudaBackend& cuda = check.cuda();
  CudaNormOps ops(cuda);
  const std::string name = absl::StrCat("norm of [", s.rows, ", ", s.cols, "], stride ", s.stride,
                                        centered ? ", centered" : "", adds ? ", after a sum" : "");
  CheckTensor x(cuda, s.rows, s.cols, Normal(check), s.stride);
  CheckTensor y(cuda, s.rows, s.cols, Normal(check, 0.5f), s.stride);
  CheckTensor sum(cuda, s.rows, s.cols, {}, s.stride), out(cuda, s.rows, s.cols, {}, s.stride);
  CheckVector<float> weight(cuda, NormalVector(check, s.cols, 1, 0.1f));
  CheckVector<float> bias(cuda, NormalVector(check, s.cols, 0, 0.1f));
  CheckVector<float> mean(cuda, s.rows), rstd(cuda, s.rows), amax(cuda, 1);
  const auto request = [&](bool device, DType dtype) {
    const auto pick = [&](CheckTensor& t) {
      return device ? t.device(dtype) : dtype == DType::kF32 ? t.f32() : t.bf16();
    };
    const auto vector = [&](CheckVector<float>& v) { return device ? v.device() : v.host(); };
    AddNormForward r = {.norm = {.centered = centered,
                                 .weight = vector(weight),
                                 .bias = centered ? vector(bias) : nullptr},
                        .x = Const(pick(x)),
                        .out = pick(out),
                        .mean = centered ? vector(mean) : nullptr,
                        .rstd = vector(rstd),
                        .amax = vector(amax)};
    if (adds) {
      r.y = Const(pick(y));
      r.sum = pick(sum);
    }
    return r;
  };
  check.ExpectOk(name, check.cpu().norm().Forward(request(false, DType::kF32)));
  check.ExpectOk(name, check.cpu().norm().Forward(request(false, DType::kBf16)));
  check.ExpectOk(name, ops.Forward(request(true, DType::kBf16)));
  check.ExpectClose(name, out);
  if (adds) check.ExpectClose(absl::StrCat(name, ", sum"), sum);
  check.Expect(out.GapsAreUntouched(), absl::StrCat(name, ": gaps"));
  check.Expect(rstd.Distance() < 1e-6, absl::StrCat(name, ": rstd ", rstd.Distance()));
  check.Expect(amax.OfDevice()[0] == Largest(out, s), absl::StrCat(name, ": amax"));
  check.ExpectOk(name, ops.Forward(request(true, DType::kF32)));
  check.Expect(out.DeviceDistance(DType::kF32) < 1e-6, absl::StrCat(name, " in FP32"));

  // Backward, of the norm's input as the card has it.
  CheckTensor dout(cuda, s.rows, s.cols, Normal(check), s.stride);
  CheckTensor residual(cuda, s.rows, s.cols, Normal(check), s.stride);
  CheckTensor dx(cuda, s.rows, s.cols, {}, s.stride);
  CheckVector<float> dweight(cuda, s.cols, 1.0f), dbias(cuda, s.cols, 1.0f);
  const auto backward = [&](bool device, DType dtype) {
    const auto pick = [&](CheckTensor& t) {
      return device ? t.device(dtype) : dtype == DType::kF32 ? t.f32() : t.bf16();
    };
    NormBackward r = {.norm = request(device, dtype).norm,
                      .x = Const(pick(x)),
                      .dout = Const(pick(dout)),
                      .residual = adds ? Const(pick(residual)) : ConstMatrix(),
                      .mean = device ? mean.device() : mean.host(),
                      .rstd = device ? rstd.device() : rstd.host(),
                      .dx = pick(dx),
                      .dweight = device ? dweight.device() : dweight.host(),
                      .dbias = !centered ? nullptr
                               : device  ? dbias.device()
                                         : dbias.host()};
    if (!centered) r.mean = nullptr;
    return r;
  };
  if (adds) return;  // x is then not the norm's input
  CheckVector<float> spare(cuda, s.cols), spare2(cuda, s.cols);
  NormBackward bf16 = backward(false, DType::kBf16);
  bf16.dweight = spare.host();
  if (centered) bf16.dbias = spare2.host();
  check.ExpectOk(name, check.cpu().norm().Backward(backward(false, DType::kF32)));
  check.ExpectOk(name, check.cpu().norm().Backward(bf16));
  const NormBackward on_card = backward(true, DType::kBf16);
  check.ExpectKeeps(name, ops.ScratchBytes(on_card),
                    [&] { check.ExpectOk(name, ops.Backward(on_card)); });
  check.ExpectClose(absl::StrCat(name, ", backward"), dx);
  ExpectSum(check, absl::StrCat(name, ", dweight"), dweight);
  if (centered) ExpectSum(check, absl::StrCat(name, ", dbias"), dbias);
}

void CheckGatedNorm(LayerCheck& check, const Shape& s, int groups) {
  CudaBackend& cuda = check.cuda();
  CudaNormOps ops(cuda);
  const std::string name =
      absl::StrCat("gated norm of [", s.rows, ", ", s.cols, "] in ", groups, " groups");
  CheckTensor y(cuda, s.rows, s.cols, Normal(check), s.stride);
  CheckTensor z(cuda, s.rows, s.cols, Normal(check, 2), s.stride);
  CheckTensor dout(cuda, s.rows, s.cols, Normal(check), s.stride);
  CheckTensor out(cuda, s.rows, s.cols, {}, s.stride), dy(cuda, s.rows, s.cols, {}, s.stride),
      dz(cuda, s.rows, s.cols, {}, s.stride);
  CheckVector<float> weight(cuda, NormalVector(check, s.cols, 1, 0.1f));
  CheckVector<float> rstd(cuda, s.rows * groups), dweight(cuda, s.cols, 1.0f), spare(cuda, s.cols);
  CheckVector<float> amax(cuda, 1);
  const auto run = [&](LayerOps* cpu, DType dtype, CheckVector<float>& gradient) {
    const bool device = cpu == nullptr;
    NormOps& norm = device ? static_cast<NormOps&>(ops) : cpu->norm();
    const auto pick = [&](CheckTensor& t) {
      return device ? t.device(dtype) : dtype == DType::kF32 ? t.f32() : t.bf16();
    };
    const auto vector = [&](CheckVector<float>& v) { return device ? v.device() : v.host(); };
    check.ExpectOk(name, norm.Forward(GatedNormForward{.groups = groups,
                                                       .weight = vector(weight),
                                                       .y = Const(pick(y)),
                                                       .z = Const(pick(z)),
                                                       .out = pick(out),
                                                       .rstd = vector(rstd),
                                                       .amax = vector(amax)}));
    check.ExpectOk(name, norm.Backward(GatedNormBackward{.groups = groups,
                                                         .weight = vector(weight),
                                                         .y = Const(pick(y)),
                                                         .z = Const(pick(z)),
                                                         .dout = Const(pick(dout)),
                                                         .rstd = vector(rstd),
                                                         .dy = pick(dy),
                                                         .dz = pick(dz),
                                                         .dweight = vector(gradient)}));
  };
  run(&check.cpu(), DType::kBf16, spare);
  run(&check.cpu(), DType::kF32, dweight);
  run(nullptr, DType::kBf16, dweight);
  check.ExpectClose(name, out);
  check.ExpectClose(absl::StrCat(name, ", dy"), dy);
  check.ExpectClose(absl::StrCat(name, ", dz"), dz);
  check.Expect(dweight.Distance() <= 1e-5,
               absl::StrCat(name, ", dweight ", dweight.Distance(), " from the CPU's"));
  check.Expect(amax.OfDevice()[0] == Largest(out, s), absl::StrCat(name, ": amax"));
  run(nullptr, DType::kF32, spare);
  for (CheckTensor* tensor : {&out, &dy, &dz}) {
    const double distance = tensor->DeviceDistance(DType::kF32);
    check.Expect(distance < 1e-6, absl::StrCat(name, " in FP32: ", distance, " from the CPU's"));
    check.Expect(tensor->GapsAreUntouched() && tensor->GapsAreUntouched(DType::kF32),
                 absl::StrCat(name, ": gaps"));
  }
}

const char* NameOf(Activation kind) {
  return kind == Activation::kSquaredRelu ? "squared relu"
         : kind == Activation::kGelu      ? "gelu"
                                          : "swiglu";
}

void CheckActivation(LayerCheck& check, const Shape& s, Activation kind, bool biased) {
  CudaBackend& cuda = check.cuda();
  CudaElementwiseOps ops(cuda);
  const int64_t in_cols = kind == Activation::kSwiglu ? 2 * s.cols : s.cols;
  const int64_t in_stride = s.stride == 0 ? 0 : 2 * s.stride;
  const std::string name =
      absl::StrCat(NameOf(kind), " to [", s.rows, ", ", s.cols, "]", biased ? ", biased" : "");
  CheckTensor in(cuda, s.rows, in_cols, Normal(check, 3), in_stride);
  CheckTensor dout(cuda, s.rows, s.cols, Normal(check), s.stride);
  CheckTensor out(cuda, s.rows, s.cols, {}, s.stride);
  CheckTensor din(cuda, s.rows, in_cols, {}, in_stride);
  CheckVector<float> bias(cuda, NormalVector(check, in_cols, 0, 1)), amax(cuda, 1);
  const auto run = [&](LayerOps* cpu, DType dtype) {
    const bool device = cpu == nullptr;
    ElementwiseOps& elementwise = device ? static_cast<ElementwiseOps&>(ops) : cpu->elementwise();
    const auto pick = [&](CheckTensor& t) {
      return device ? t.device(dtype) : dtype == DType::kF32 ? t.f32() : t.bf16();
    };
    float* const b = !biased ? nullptr : device ? bias.device() : bias.host();
    float* const a = device ? amax.device() : amax.host();
    check.ExpectOk(
        name, elementwise.Forward(ActivationForward{
                  .kind = kind, .bias = b, .in = Const(pick(in)), .out = pick(out), .amax = a}));
    check.ExpectOk(name, elementwise.Backward(ActivationBackward{.kind = kind,
                                                                 .bias = b,
                                                                 .in = Const(pick(in)),
                                                                 .dout = Const(pick(dout)),
                                                                 .din = pick(din),
                                                                 .amax = a}));
  };
  run(&check.cpu(), DType::kF32);
  run(&check.cpu(), DType::kBf16);
  run(nullptr, DType::kBf16);
  check.ExpectClose(name, out);
  check.ExpectClose(absl::StrCat(name, ", backward"), din);
  check.Expect(out.GapsAreUntouched() && din.GapsAreUntouched(), absl::StrCat(name, ": gaps"));
}

void CheckBiasesAndCasts(LayerCheck& check, const Shape& s) {
  CudaBackend& cuda = check.cuda();
  CudaElementwiseOps ops(cuda);
  const std::string name = absl::StrCat("[", s.rows, ", ", s.cols, "], stride ", s.stride);
  CheckTensor y(cuda, s.rows, s.cols, Normal(check), s.stride);
  CheckTensor from(cuda, s.rows, s.cols, Normal(check), s.stride);
  CheckVector<float> bias(cuda, NormalVector(check, s.cols, 0, 1)), dbias(cuda, s.cols, 1.0f);
  check.ExpectOk(name, check.cpu().elementwise().Backward(
                           BiasBackward{.dy = Const(y.f32()), .dbias = dbias.host()}));
  const BiasBackward backward = {.dy = Const(y.device()), .dbias = dbias.device()};
  check.ExpectKeeps(name, ops.ScratchBytes(backward),
                    [&] { check.ExpectOk(name, ops.Backward(backward)); });
  ExpectSum(check, absl::StrCat("dbias of ", name), dbias);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const auto host = [&](CheckTensor& t) { return dtype == DType::kF32 ? t.f32() : t.bf16(); };
    check.ExpectOk(
        name, check.cpu().elementwise().Forward(BiasForward{.y = host(y), .bias = bias.host()}));
    check.ExpectOk(name, ops.Forward(BiasForward{.y = y.device(dtype), .bias = bias.device()}));
  }
  check.ExpectClose(absl::StrCat("bias of ", name), y);
  check.ExpectOk(
      name, check.cpu().elementwise().Run(Accumulate{.from = Const(from.bf16()), .to = y.f32()}));
  check.ExpectOk(name,
                 ops.Run(Accumulate{.from = Const(from.device()), .to = y.device(DType::kF32)}));
  check.Expect(y.DeviceDistance(DType::kF32) == 0, absl::StrCat("sum of ", name));
  CheckTensor to(cuda, s.rows, s.cols, {}, s.stride);
  check.ExpectOk(name,
                 check.cpu().elementwise().Run(Cast{.from = Const(from.f32()), .to = to.bf16()}));
  check.ExpectOk(name,
                 check.cpu().elementwise().Run(Cast{.from = Const(from.bf16()), .to = to.f32()}));
  check.ExpectOk(name, ops.Run(Cast{.from = Const(from.device(DType::kF32)), .to = to.device()}));
  check.ExpectOk(name, ops.Run(Cast{.from = Const(from.device()), .to = to.device(DType::kF32)}));
  check.Expect(to.DeviceDistance() == to.HostDistance(), absl::StrCat("cast of ", name));
  check.Expect(to.DeviceDistance(DType::kF32) == 0, absl::StrCat("widening of ", name));
}

// Random parts of one memory, adjacent, with odd places and lengths among them.
void CheckCopies(LayerCheck& check, int64_t parts) {
  CudaBackend& cuda = check.cuda();
  CudaElementwiseOps ops(cuda);
  const std::string name = absl::StrCat("copies of ", parts, " parts");
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(check.random()() % static_cast<uint64_t>(n));
  };
  struct Placed {
    CopyParts::Part part;
    int64_t to, from;
  };
  std::vector<Placed> placed;
  int64_t to_bytes = 0, from_bytes = 0;
  const int64_t units[] = {1, 2, 4, 8, 16};
  for (int64_t i = 0; i < parts; ++i) {
    CopyParts::Part part = {.as = static_cast<CopyParts::As>(below(3))};
    const int64_t unit = units[below(5)];
    part.elements = unit * below(i % 7 == 0 ? 20000 : 60);
    part.lines = i % 3 == 0 ? 1 + below(40) : 1;
    part.to_pitch = (part.elements + unit * below(3)) * part.to_size();
    part.from_pitch = (part.elements + unit * below(3)) * part.from_size();
    const auto place = [&](int64_t& used, int64_t size, int64_t pitch) {
      const int64_t align = part.as == CopyParts::As::kBytes ? unit : unit * size;
      const int64_t at = (used + align - 1) / align * align;
      used = at + part.lines * pitch;
      return at;
    };
    const int64_t to = place(to_bytes, part.to_size(), part.to_pitch);
    placed.push_back({part, to, place(from_bytes, part.from_size(), part.from_pitch)});
  }
  // BF16 and FP32 of any bits.
  std::vector<uint8_t> values(static_cast<size_t>(from_bytes + 1));
  for (uint8_t& value : values) value = static_cast<uint8_t>(check.random()());
  // No NaN, whose bits differ between processors.
  for (size_t i = 1; i < values.size(); i += 2) values[i] &= 0xbf;
  CheckVector<uint8_t> from(cuda, values), to(cuda, to_bytes + 1, uint8_t{0x5a});
  const auto request = [&](uint8_t* into, const uint8_t* out_of) {
    std::vector<CopyParts::Part> all;
    for (const Placed& p : placed) {
      all.push_back(p.part);
      all.back().to = into + p.to;
      all.back().from = out_of + p.from;
    }
    return all;
  };
  check.ExpectOk(name, check.cpu().elementwise().Run(CopyParts{request(to.host(), from.host())}));
  check.ExpectOk(name, ops.Run(CopyParts{request(to.device(), from.device())}));
  check.Expect(to.SameBits(), name);
}

}  // namespace

void CheckNorms(LayerCheck& check) {
  for (const Shape& shape : kShapes) {
    for (const bool centered : {false, true}) {
      for (const bool adds : {false, true}) CheckAddNorm(check, shape, centered, adds);
    }
    for (const int groups : {1, 2, 4}) {
      if (shape.cols % groups == 0) CheckGatedNorm(check, shape, groups);
    }
  }
  // More rows than teams of threads that share a group's: warps, and thread blocks.
  CheckGatedNorm(check, {140, 1024, 1032}, 32);
  CheckGatedNorm(check, {70, 16640, 0}, 32);
  CheckGatedNorm(check, {70, 16704, 0}, 32);
}

void CheckElementwise(LayerCheck& check) {
  for (const Shape& shape : kShapes) {
    for (const Activation kind :
         {Activation::kSquaredRelu, Activation::kGelu, Activation::kSwiglu}) {
      CheckActivation(check, shape, kind, /*biased=*/shape.rows % 2 == 1);
    }
    CheckBiasesAndCasts(check, shape);
  }
  for (const int64_t parts : {1, 2, 63, 64, 65, 200}) CheckCopies(check, parts);
}

}  // namespace nibble
