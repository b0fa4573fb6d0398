#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/layers/cuda_mamba_ops.h"
#include "kernels/cuda/layers/mamba_check.h"
#include "kernels/cuda/layers/mamba_check_data.h"

namespace nibble {
namespace {

ConstMatrix Const(const MutableMatrix& m) { return {m.data, m.dtype, m.rows, m.cols, m.stride}; }

// Pieces of the given numbers of rows, one after the other.
std::vector<Continuation> PiecesOf(const std::vector<int64_t>& rows) {
  std::vector<Continuation> pieces;
  int64_t row = 0;
  for (const int64_t count : rows) {
    pieces.push_back({row, count, 100});
    row += count;
  }
  return pieces;
}
int64_t SumOf(const std::vector<int64_t>& rows) {
  int64_t sum = 0;
  for (const int64_t count : rows) sum += count;
  return sum;
}
// Rows [first, first + rows) of a matrix.
template <class Matrix>
Matrix RowsOf(Matrix m, int64_t first, int64_t rows) {
  using Byte = char;
  m.data = static_cast<Byte*>(const_cast<void*>(static_cast<const void*>(m.data))) +
           first * m.stride * DTypeBytes(m.dtype);
  m.rows = rows;
  return m;
}
std::vector<float*> PointersTo(float* base, size_t count, int64_t size) {
  std::vector<float*> pointers;
  for (size_t i = 0; i < count; ++i) pointers.push_back(base + static_cast<int64_t>(i) * size);
  return pointers;
}

// Runs `run(ops, layout, first row, states)` on the CPU in both types and on the card, at once and
// token by token, and judges outputs and states.
template <class Run>
void CheckPieces(LayerCheck& check, const std::string& name, CudaMambaOps& ops,
                 const std::vector<int64_t>& rows, int64_t state_size, CheckTensor& out,
                 Run&& run) {
  const std::vector<Continuation> pieces = PiecesOf(rows);
  const SequenceLayout layout = {.continued = pieces};
  const std::vector<float> start =
      RandomValues(check, static_cast<int64_t>(rows.size()) * state_size, 0, 0.5f);
  std::vector<float> f32 = start, bf16 = start;
  run(check.cpu().mamba(), layout, 0, PointersTo(f32.data(), rows.size(), state_size), 0);
  run(check.cpu().mamba(), layout, 0, PointersTo(bf16.data(), rows.size(), state_size), 1);
  CheckArray<float> states(check.cuda(), start);
  for (const bool is_f32 : {false, true}) {
    const DType type = is_f32 ? DType::kF32 : DType::kBf16;
    const int side = is_f32 ? 3 : 2;
    const std::string kind = name + (is_f32 ? " f32" : " bf16");
    states.SetDevice(start);
    const std::vector<float*> pointers = PointersTo(states.device(), rows.size(), state_size);
    run(ops, layout, 0, pointers, side);
    const std::vector<float> values = out.DeviceValues(type), after = states.Device();
    if (is_f32) {
      ExpectNear(check, kind + " out", out.DeviceDistance(type), 3e-6);
    } else {
      check.ExpectClose(kind + " out", out);
    }
    ExpectNear(check, kind + " states", RelativeDistance(after, f32.data()), 3e-6);
    check.Expect(out.GapsAreUntouched(type), kind + ": wrote between rows");
    // One token of each sequence at a time.
    states.SetDevice(start);
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t t = 0; t < rows[i];) {
        const int64_t count = t == 0 && rows[i] > 3 ? 2 : 1;
        const std::vector<Continuation> one = {{0, count, 100 + t}};
        run(ops, SequenceLayout{.continued = one}, pieces[i].row + t, {pointers[i]}, side);
        t += count;
      }
    }
    check.Expect(SameBits(values, out.DeviceValues(type)) && SameBits(after, states.Device()),
                 kind + ": the division into requests changes the result");
  }
}

MutableMatrix SideOf(CheckTensor& m, int side) {
  switch (side) {
    case 0:
      return m.f32();
    case 1:
      return m.bf16();
    case 2:
      return m.device(DType::kBf16);
  }
  return m.device(DType::kF32);
}

void CheckConv(LayerCheck& check, CudaMambaOps& ops, int64_t channels, int width, int64_t gap,
               const std::vector<int64_t>& rows) {
  CudaBackend& cuda = check.cuda();
  const int64_t tokens = SumOf(rows);
  CheckTensor in(
      cuda, tokens, channels, [&](int64_t, int64_t) { return 2 * check.Normal(); }, channels + gap);
  CheckTensor out(cuda, tokens, channels, {}, channels + gap);
  CheckArray<float> weight(cuda, RandomValues(check, channels * width, 0, 0.5f));
  CheckArray<float> bias(cuda, RandomValues(check, channels, 0, 0.5f));
  const std::string name = absl::StrCat("conv tokens, ", channels, " channels, width ", width, ", ",
                                        rows.size(), " sequences");
  CheckPieces(check, name, ops, rows, (width - 1) * channels, out,
              [&](MambaOps& to, const SequenceLayout& layout, int64_t first,
                  const std::vector<float*>& windows, int side) {
                const bool host = side < 2;
                check.ExpectOk(name,
                               to.Forward(ConvForward{
                                   .layout = layout,
                                   .width = width,
                                   .weight = host ? weight.host() : weight.device(),
                                   .bias = host ? bias.host() : bias.device(),
                                   .in = RowsOf(Const(SideOf(in, side)), first, layout.tokens()),
                                   .out = RowsOf(SideOf(out, side), first, layout.tokens()),
                                   .windows = windows}));
              });
}

void CheckScan(LayerCheck& check, CudaMambaOps& ops, const ScanShape& shape, int64_t gap,
               const std::vector<int64_t>& rows) {
  CudaBackend& cuda = check.cuda();
  const int64_t tokens = SumOf(rows);
  CheckTensor xbc(
      cuda, tokens, shape.xbc_cols(), [&](int64_t, int64_t) { return check.Normal(); },
      shape.xbc_cols() + gap);
  CheckTensor dt(cuda, tokens, shape.heads, [&](int64_t, int64_t) { return check.Normal() - 2; });
  CheckTensor y(cuda, tokens, shape.d_inner(), {}, shape.d_inner() + gap);
  CheckArray<float> dt_bias(cuda, RandomValues(check, shape.heads, 0, 0.5f));
  CheckArray<float> a_log(cuda, RandomValues(check, shape.heads, 0.5f, 0.7f));
  CheckArray<float> d(cuda, RandomValues(check, shape.heads, 1, 0.3f));
  const std::string name =
      absl::StrCat("scan tokens, ", shape.heads, " x ", shape.head_dim, " by ", shape.groups, " x ",
                   shape.state, ", ", rows.size(), " sequences");
  CheckPieces(
      check, name, ops, rows, shape.d_inner() * shape.state, y,
      [&](MambaOps& to, const SequenceLayout& layout, int64_t first,
          const std::vector<float*>& states, int side) {
        const ScanParams params = side < 2
                                      ? ScanParams{dt_bias.host(), a_log.host(), d.host()}
                                      : ScanParams{dt_bias.device(), a_log.device(), d.device()};
        check.ExpectOk(name, to.Forward(ScanForward{
                                 .shape = shape,
                                 .params = params,
                                 .layout = layout,
                                 .xbc = RowsOf(Const(SideOf(xbc, side)), first, layout.tokens()),
                                 .dt = RowsOf(Const(SideOf(dt, side)), first, layout.tokens()),
                                 .y = RowsOf(SideOf(y, side), first, layout.tokens()),
                                 .states = states}));
      });
}

}  // namespace

void CheckMambaTokens(LayerCheck& check, bool few) {
  CudaMambaOps ops(check.cuda());
  CheckConv(check, ops, 1, 4, 0, {1});
  CheckConv(check, ops, 24, 4, 0, {1, 2, 3, 4, 40});
  CheckConv(check, ops, 130, 4, 6, {70, 1, 33});
  if (!few) CheckConv(check, ops, 9, 1, 1, {5, 2});
  CheckConv(check, ops, 17, 16, 0, {3, 60, 1});
  if (!few) CheckConv(check, ops, 8, 3, 0, std::vector<int64_t>(70, 1));
  Report(check, "convolution, tokens");
  CheckScan(check, ops, {2, 3, 1, 5, 7}, 0, {1});
  CheckScan(check, ops, {2, 64, 1, 128, 128}, 0, {1, 3, 20});
  CheckScan(check, ops, {4, 80, 2, 128, 128}, 8, {9, 8, 1});
  CheckScan(check, ops, {3, 37, 3, 21, 33}, 1, {2, 17});
  if (!few) CheckScan(check, ops, {1, 5, 1, 200, 16}, 0, {12, 1});
  CheckScan(check, ops, {2, 100, 1, 48, 16}, 0, {4});
  if (!few) CheckScan(check, ops, {1, 8, 1, 8, 16}, 0, std::vector<int64_t>(130, 1));
  Report(check, "scan, tokens");
}

void CheckMamba(LayerCheck& check, const MambaCheckOptions& options) {
  if (options.Wants("conv")) CheckMambaConv(check, options.few);
  if (options.Wants("tokens")) CheckMambaTokens(check, options.few);
  if (options.Wants("scan")) CheckMambaScan(check, options);
}

}  // namespace nibble
