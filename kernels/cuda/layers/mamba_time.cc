#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/layers/cuda_mamba_ops.h"
#include "kernels/cuda/layers/mamba_check.h"
#include "kernels/cuda/layers/mamba_check_data.h"

namespace nibble {
namespace {

// BF16 values of magnitudes from 1/8 to 2 on the device, rows `stride` elements apart (0: cols).
class DeviceMatrix {
 public:
  DeviceMatrix(CudaBackend& cuda, int64_t rows, int64_t cols, int64_t stride = 0)
      : rows_(rows), cols_(cols), stride_(stride == 0 ? cols : stride) {
    const size_t count = static_cast<size_t>(rows_ * stride_);
    std::vector<uint16_t> values(count);
    uint64_t random = 88172645463325252u;
    for (uint16_t& x : values) {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      x = static_cast<uint16_t>((random & 0x807f) | ((124 + (random >> 20 & 3)) << 7));
    }
    data_ = *cuda.memory().Allocate(count * 2);
    (void)cuda.memory().CopyIn(data_.data(), values.data(), count * 2);
  }
  ConstMatrix in() const { return {data_.data(), DType::kBf16, rows_, cols_, stride_}; }
  MutableMatrix out() const { return {data_.data(), DType::kBf16, rows_, cols_, stride_}; }
  double bytes() const { return 2.0 * static_cast<double>(rows_ * cols_); }

 private:
  int64_t rows_, cols_, stride_;
  Buffer data_;
};

// Products of the scan's definition in chunks of 128, per token and lane: C·Bᵀ of a group is
// shared.
double ForwardFlops(const ScanShape& s, int64_t tokens) {
  const double pairs = 64.5;  // seen per token
  return static_cast<double>(tokens) *
         (2 * pairs * (static_cast<double>(s.groups) * s.state + s.heads * double(s.head_dim)) +
          4.0 * s.heads * s.head_dim * s.state);
}
double BackwardFlops(const ScanShape& s, int64_t tokens) {
  const double pairs = 64.5;
  return static_cast<double>(tokens) * (2 * pairs *
                                            (3 * static_cast<double>(s.groups) * s.state +
                                             2 * s.heads * static_cast<double>(s.head_dim)) +
                                        10.0 * s.heads * s.head_dim * s.state);
}

void TimeTraining(LayerCheck& check, CudaMambaOps& ops, const std::string& model,
                  const ScanShape& s, int64_t sequences, int64_t length) {
  CudaBackend& cuda = check.cuda();
  const int64_t tokens = sequences * length, channels = s.xbc_cols();
  const std::string name = absl::StrCat(model, " ", sequences, " x ", length);
  const SequenceLayout layout = {.sequences = sequences, .length = length};
  // Columns of a projection [tokens, z | xBC | dt].
  const int64_t projected = s.d_inner() + channels + s.heads;
  DeviceMatrix in(cuda, tokens, channels, projected), gradient(cuda, tokens, channels, projected);
  DeviceMatrix xbc(cuda, tokens, channels), dxbc(cuda, tokens, channels);
  DeviceMatrix dt(cuda, tokens, s.heads), ddt(cuda, tokens, s.heads);
  DeviceMatrix y(cuda, tokens, s.d_inner()), dy(cuda, tokens, s.d_inner());
  CheckArray<float> weight(cuda, RandomValues(check, channels * 4, 0, 0.5f));
  CheckArray<float> bias(cuda, RandomValues(check, channels, 0, 0.5f));
  CheckArray<float> dweight(cuda, std::vector<float>(weight.size()));
  CheckArray<float> dbias(cuda, std::vector<float>(bias.size()));
  CheckArray<float> dt_bias(cuda, RandomValues(check, s.heads, -4, 1));
  CheckArray<float> a_log(cuda, RandomValues(check, s.heads, 0.5f, 0.7f));
  CheckArray<float> d(cuda, RandomValues(check, s.heads, 1, 0.3f));
  CheckArray<float> sums(cuda, std::vector<float>(static_cast<size_t>(3 * s.heads)));
  const ScanParams params = {dt_bias.device(), a_log.device(), d.device()};
  check.Time("conv forward " + name, in.bytes() + xbc.bytes(), 0, [&](int) {
    return ops.Forward(ConvForward{.layout = layout,
                                   .weight = weight.device(),
                                   .bias = bias.device(),
                                   .in = in.in(),
                                   .out = xbc.out()});
  });
  check.Time("conv backward " + name, 3 * in.bytes(), 0, [&](int) {
    return ops.Backward(ConvBackward{.layout = layout,
                                     .weight = weight.device(),
                                     .bias = bias.device(),
                                     .in = in.in(),
                                     .dout = dxbc.in(),
                                     .din = gradient.out(),
                                     .dweight = dweight.device(),
                                     .dbias = dbias.device()});
  });
  check.Time("scan forward " + name, xbc.bytes() + dt.bytes() + y.bytes(), ForwardFlops(s, tokens),
             [&](int) {
               return ops.Forward(ScanForward{.shape = s,
                                              .params = params,
                                              .layout = layout,
                                              .xbc = xbc.in(),
                                              .dt = dt.in(),
                                              .y = y.out()});
             });
  check.Time("scan backward " + name, 2 * xbc.bytes() + 2 * dt.bytes() + dy.bytes(),
             BackwardFlops(s, tokens), [&](int) {
               return ops.Backward(ScanBackward{.shape = s,
                                                .params = params,
                                                .layout = layout,
                                                .xbc = xbc.in(),
                                                .dt = dt.in(),
                                                .dy = dy.in(),
                                                .dxbc = dxbc.out(),
                                                .ddt = ddt.out(),
                                                .ddt_bias = sums.device(),
                                                .da_log = sums.device() + s.heads,
                                                .dd = sums.device() + 2 * s.heads});
             });
  Report(check, name.c_str());
}

void TimeDecoding(LayerCheck& check, CudaMambaOps& ops, const std::string& model,
                  const ScanShape& s, int64_t sequences, int64_t rows) {
  CudaBackend& cuda = check.cuda();
  const int64_t tokens = sequences * rows, channels = s.xbc_cols();
  const int64_t window = 3 * channels, state = s.d_inner() * s.state;
  const std::string name = absl::StrCat(model, ", ", rows, " of ", sequences, " sequences");
  DeviceMatrix in(cuda, tokens, channels), xbc(cuda, tokens, channels);
  DeviceMatrix dt(cuda, tokens, s.heads), y(cuda, tokens, s.d_inner());
  CheckArray<float> weight(cuda, RandomValues(check, channels * 4, 0, 0.5f));
  CheckArray<float> bias(cuda, RandomValues(check, channels, 0, 0.5f));
  CheckArray<float> heads(cuda, RandomValues(check, s.heads, -2, 0.5f));
  CheckArray<float> memory(cuda,
                           std::vector<float>(static_cast<size_t>(sequences * (window + state))));
  std::vector<Continuation> pieces;
  std::vector<float*> windows, states;
  for (int64_t i = 0; i < sequences; ++i) {
    pieces.push_back({i * rows, rows, 100});
    windows.push_back(memory.device() + i * window);
    states.push_back(memory.device() + sequences * window + i * state);
  }
  const SequenceLayout layout = {.continued = pieces};
  check.Time("conv tokens " + name,
             in.bytes() + xbc.bytes() + 8.0 * static_cast<double>(sequences * window), 0, [&](int) {
               return ops.Forward(ConvForward{.layout = layout,
                                              .weight = weight.device(),
                                              .bias = bias.device(),
                                              .in = in.in(),
                                              .out = xbc.out(),
                                              .windows = windows});
             });
  check.Time(
      "scan tokens " + name, xbc.bytes() + y.bytes() + 8.0 * static_cast<double>(sequences * state),
      0, [&](int) {
        return ops.Forward(ScanForward{.shape = s,
                                       .params = {heads.device(), heads.device(), heads.device()},
                                       .layout = layout,
                                       .xbc = xbc.in(),
                                       .dt = dt.in(),
                                       .y = y.out(),
                                       .states = states});
      });
  Report(check, name.c_str());
}

}  // namespace

// heads, head_dim, groups, state, chunk
void TimeMamba(LayerCheck& check) {
  CudaMambaOps ops(check.cuda()), tiles(check.cuda());
  tiles.UseHopper(false);
  const ScanShape hybrid_1b = {64, 64, 8, 128, 128};
  const ScanShape nemotron_12b = {128, 80, 8, 128, 128}, nemotron_8b = {128, 64, 8, 128, 128};
  const ScanShape tiny = {32, 16, 1, 48, 64};
  TimeTraining(check, ops, "12B", nemotron_12b, 4, 4096);
  TimeTraining(check, ops, "12B", nemotron_12b, 1, 8192);
  TimeTraining(check, ops, "8B", nemotron_8b, 4, 4096);
  TimeTraining(check, tiles, "8B, tiles", nemotron_8b, 4, 4096);
  TimeTraining(check, ops, "1B", hybrid_1b, 2, 8192);
  TimeTraining(check, tiles, "1B, tiles", hybrid_1b, 2, 8192);
  TimeTraining(check, ops, "tiny", tiny, 16, 256);
  TimeDecoding(check, ops, "12B", nemotron_12b, 1, 1);
  TimeDecoding(check, ops, "12B", nemotron_12b, 64, 1);
  TimeDecoding(check, ops, "12B", nemotron_12b, 1, 4096);
}

}  // namespace nibble
