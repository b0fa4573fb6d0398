#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/layers/cuda_mamba_ops.h"
#include "kernels/cuda/layers/mamba_check.h"
#include "kernels/cuda/layers/mamba_check_data.h"

namespace nibble {
namespace {

struct ConvCase {
  int64_t sequences, length, channels;
  int width;
  int64_t mean_document = 0, gap = 0;

  std::string Name() const {
    return absl::StrCat("conv ", sequences, " x ", length, " x ", channels, " width ", width,
                        mean_document ? absl::StrCat(", documents of ", mean_document) : "",
                        gap ? absl::StrCat(", gap ", gap) : "");
  }
};

void CheckCase(LayerCheck& check, CudaMambaOps& ops, const ConvCase& c) {
  CudaBackend& cuda = check.cuda();
  const int64_t tokens = c.sequences * c.length, stride = c.channels + c.gap;
  const auto normal = [&](int64_t, int64_t) { return 2 * check.Normal(); };
  CheckTensor in(cuda, tokens, c.channels, normal, stride);
  CheckTensor dout(cuda, tokens, c.channels, normal, stride);
  CheckArray<float> weight(cuda, RandomValues(check, c.channels * c.width, 0, 0.5f));
  CheckArray<float> bias(cuda, RandomValues(check, c.channels, 0, 0.5f));
  CheckArray<int32_t> documents(
      cuda, RandomDocuments(check, c.sequences, c.length, c.mean_document ? c.mean_document : 1));
  const SequenceLayout layout = {.sequences = c.sequences,
                                 .length = c.length,
                                 .doc_begin = c.mean_document ? documents.host() : nullptr};
  SequenceLayout on_device = layout;
  if (c.mean_document) on_device.doc_begin = documents.device();
  const auto constant = [](const MutableMatrix& m) {
    return ConstMatrix{m.data, m.dtype, m.rows, m.cols, m.stride};
  };

  CheckTensor out(cuda, tokens, c.channels, {}, stride), din(cuda, tokens, c.channels, {}, stride);
  const std::vector<float> weights_before = RandomValues(check, c.channels * c.width, 0, 1);
  const std::vector<float> bias_before = RandomValues(check, c.channels, 0, 1);
  std::vector<float> dweight_f32 = weights_before, dweight_bf16 = weights_before;
  std::vector<float> dbias_f32 = bias_before, dbias_bf16 = bias_before;
  const auto forward = [&](MambaOps& to, const SequenceLayout& where, float* w, float* b,
                           MutableMatrix from, MutableMatrix result) {
    check.ExpectOk(c.Name(), to.Forward(ConvForward{.layout = where,
                                                    .width = c.width,
                                                    .weight = w,
                                                    .bias = b,
                                                    .in = constant(from),
                                                    .out = result}));
  };
  size_t scratch_bytes = 0;
  const auto backward = [&](MambaOps& to, const SequenceLayout& where, float* w, float* b,
                            MutableMatrix from, MutableMatrix gradient, MutableMatrix result,
                            float* dw, float* db) {
    const ConvBackward request = {.layout = where,
                                  .width = c.width,
                                  .weight = w,
                                  .bias = b,
                                  .in = constant(from),
                                  .dout = constant(gradient),
                                  .din = result,
                                  .dweight = dw,
                                  .dbias = db};
    check.ExpectOk(c.Name(), to.Backward(request));
    scratch_bytes = to.ScratchBytes(request);
  };
  MambaOps& cpu = check.cpu().mamba();
  forward(cpu, layout, weight.host(), bias.host(), in.f32(), out.f32());
  forward(cpu, layout, weight.host(), bias.host(), in.bf16(), out.bf16());
  backward(cpu, layout, weight.host(), bias.host(), in.f32(), dout.f32(), din.f32(),
           dweight_f32.data(), dbias_f32.data());
  backward(cpu, layout, weight.host(), bias.host(), in.bf16(), dout.bf16(), din.bf16(),
           dweight_bf16.data(), dbias_bf16.data());
  for (const DType type : {DType::kBf16, DType::kF32}) {
    const std::string name = c.Name() + (type == DType::kF32 ? " f32" : " bf16");
    std::vector<float> first_out, first_din, first_dweight, first_dbias;
    for (int run = 0; run < 2; ++run) {
      CheckArray<float> dweight(cuda, weights_before), dbias(cuda, bias_before);
      forward(ops, on_device, weight.device(), bias.device(), in.device(type), out.device(type));
      backward(ops, on_device, weight.device(), bias.device(), in.device(type), dout.device(type),
               din.device(type), dweight.device(), dbias.device());
      if (run == 0) {
        first_out = out.DeviceValues(type);
        first_din = din.DeviceValues(type);
        first_dweight = dweight.Device();
        first_dbias = dbias.Device();
        continue;
      }
      check.Expect(SameBits(first_out, out.DeviceValues(type)) &&
                       SameBits(first_din, din.DeviceValues(type)) &&
                       SameBits(first_dweight, dweight.Device()) &&
                       SameBits(first_dbias, dbias.Device()),
                   name + ": two runs differ");
    }
    check.Expect(out.GapsAreUntouched(type) && din.GapsAreUntouched(type),
                 name + ": wrote between rows");
    if (type == DType::kBf16) {
      check.ExpectClose(name + " out", out);
      check.ExpectClose(name + " din", din);
      ExpectSums(check, name + " dweight", first_dweight, dweight_bf16, dweight_f32.data());
      ExpectSums(check, name + " dbias", first_dbias, dbias_bf16, dbias_f32.data());
    } else {
      ExpectNear(check, name + " out", out.DeviceDistance(type), 1e-6);
      ExpectNear(check, name + " din", din.DeviceDistance(type), 1e-6);
      ExpectNear(check, name + " dweight", RelativeDistance(first_dweight, dweight_f32.data()),
                 1e-5);
      ExpectNear(check, name + " dbias", RelativeDistance(first_dbias, dbias_f32.data()), 1e-5);
    }
  }
  CudaMambaOps fresh(cuda);
  CheckArray<float> dweight(cuda, weights_before), dbias(cuda, bias_before);
  const size_t used = cuda.memory().use().used;
  backward(fresh, on_device, weight.device(), bias.device(), in.device(), dout.device(),
           din.device(), dweight.device(), dbias.device());
  const size_t kept = cuda.memory().use().used - used;
  check.Expect(kept == scratch_bytes,
               absl::StrCat(c.Name(), ": keeps ", kept, " bytes, said ", scratch_bytes));
}

}  // namespace

void CheckMambaConv(LayerCheck& check, bool few) {
  CudaMambaOps ops(check.cuda());
  for (const ConvCase& c : CasesOf<ConvCase>(few, {{1, 1, 1, 4},
                                                   {1, 1, 8, 1},
                                                   {2, 3, 16, 4},
                                                   {3, 5, 7, 2},
                                                   {2, 64, 24, 4, 10},
                                                   {1, 65, 264, 4, 0, 8},
                                                   {2, 129, 136, 4, 30, 16},
                                                   {2, 200, 40, 4, 3, 5},
                                                   {3, 97, 33, 4, 20},
                                                   {2, 70, 12, 3, 9, 4},
                                                   {1, 700, 20, 16, 40},
                                                   {1, 130, 35, 7, 1, 2},
                                                   {4, 33, 70, 5},
                                                   {1, 20, 9, 16, 6, 1},
                                                   {1, 1025, 600, 4, 100}})) {
    CheckCase(check, ops, c);
  }
  Report(check, "convolution");
}

}  // namespace nibble
