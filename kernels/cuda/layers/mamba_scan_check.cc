#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/layers/cuda_mamba_ops.h"
#include "kernels/cuda/layers/mamba_check.h"
#include "kernels/cuda/layers/mamba_check_data.h"

namespace nibble {
namespace {

struct ScanCase {
  ScanShape shape;
  int64_t sequences, length;
  int64_t mean_document = 0, gap = 0;
  float dt_mean = -2, dt_spread = 1;

  std::string Name() const {
    return absl::StrCat("scan ", sequences, " x ", length, ", ", shape.heads, " x ", shape.head_dim,
                        " by ", shape.groups, " x ", shape.state,
                        mean_document ? absl::StrCat(", documents of ", mean_document) : "",
                        gap ? absl::StrCat(", gap ", gap) : "",
                        dt_mean != -2 ? absl::StrCat(", dt ", dt_mean, " by ", dt_spread) : "");
  }
};

ConstMatrix Const(const MutableMatrix& m) { return {m.data, m.dtype, m.rows, m.cols, m.stride}; }

// A case's operands on both sides, and the CPU's results.
class Problem {
 public:
  Problem(LayerCheck& check, const ScanCase& c)
      : check_(check),
        c_(c),
        tokens_(c.sequences * c.length),
        xbc(check.cuda(), tokens_, c.shape.xbc_cols(), Values(0, 1), c.shape.xbc_cols() + c.gap),
        dt(check.cuda(), tokens_, c.shape.heads, Values(c.dt_mean, c.dt_spread),
           c.shape.heads + c.gap),
        dy(check.cuda(), tokens_, c.shape.d_inner(), Values(0, 1), c.shape.d_inner() + c.gap),
        y(check.cuda(), tokens_, c.shape.d_inner(), {}, c.shape.d_inner() + c.gap),
        dxbc(check.cuda(), tokens_, c.shape.xbc_cols(), {}, c.shape.xbc_cols() + c.gap),
        ddt(check.cuda(), tokens_, c.shape.heads, {}, c.shape.heads + c.gap),
        dt_bias(check.cuda(), RandomValues(check, c.shape.heads, 0, 0.5f)),
        a_log(check.cuda(), RandomValues(check, c.shape.heads, 0.5f, 0.7f)),
        d(check.cuda(), RandomValues(check, c.shape.heads, 1, 0.3f)),
        documents(check.cuda(), RandomDocuments(check, c.sequences, c.length,
                                                c.mean_document ? c.mean_document : 1)),
        before(RandomValues(check, c.shape.heads, 0, 1)) {
    RunCpu(xbc.f32(), dt.f32(), dy.f32(), y.f32(), dxbc.f32(), ddt.f32(), f32_);
    RunCpu(xbc.bf16(), dt.bf16(), dy.bf16(), y.bf16(), dxbc.bf16(), ddt.bf16(), bf16_);
  }

  struct Params {
    std::vector<float> ddt_bias, da_log, dd;
    bool Same(const Params& other) const {
      return SameBits(ddt_bias, other.ddt_bias) && SameBits(da_log, other.da_log) &&
             SameBits(dd, other.dd);
    }
  };
  struct Results {
    std::vector<float> y, dxbc, ddt;
    Params params;
    bool Same(const Results& other) const {
      return SameBits(y, other.y) && SameBits(dxbc, other.dxbc) && SameBits(ddt, other.ddt) &&
             params.Same(other.params);
    }
  };

  // Both directions on the card.
  Results Run(CudaMambaOps& ops, DType type) {
    CheckArray<float> ddt_bias(check_.cuda(), before), da_log(check_.cuda(), before);
    CheckArray<float> dd(check_.cuda(), before);
    const SequenceLayout layout = {.sequences = c_.sequences,
                                   .length = c_.length,
                                   .doc_begin = c_.mean_document ? documents.device() : nullptr};
    const ScanParams params = {dt_bias.device(), a_log.device(), d.device()};
    check_.ExpectOk(c_.Name(), ops.Forward(ScanForward{.shape = c_.shape,
                                                       .params = params,
                                                       .layout = layout,
                                                       .xbc = Const(xbc.device(type)),
                                                       .dt = Const(dt.device(type)),
                                                       .y = y.device(type)}));
    const ScanBackward backward = {.shape = c_.shape,
                                   .params = params,
                                   .layout = layout,
                                   .xbc = Const(xbc.device(type)),
                                   .dt = Const(dt.device(type)),
                                   .dy = Const(dy.device(type)),
                                   .dxbc = dxbc.device(type),
                                   .ddt = ddt.device(type),
                                   .ddt_bias = ddt_bias.device(),
                                   .da_log = da_log.device(),
                                   .dd = dd.device()};
    check_.ExpectOk(c_.Name(), ops.Backward(backward));
    scratch_bytes = ops.ScratchBytes(backward);
    return {y.DeviceValues(type),
            dxbc.DeviceValues(type),
            ddt.DeviceValues(type),
            {ddt_bias.Device(), da_log.Device(), dd.Device()}};
  }

  // Judges what Run() left.
  void Judge(const std::string& name, DType type, const Results& results) {
    check_.Expect(
        y.GapsAreUntouched(type) && dxbc.GapsAreUntouched(type) && ddt.GapsAreUntouched(type),
        name + ": wrote between rows");
    const Params& params = results.params;
    if (type == DType::kBf16) {
      check_.ExpectClose(name + " y", y);
      check_.ExpectClose(name + " dxbc", dxbc);
      ExpectCloseByFew(check_, name + " ddt", ddt);
      ExpectSums(check_, name + " ddt_bias", params.ddt_bias, bf16_.ddt_bias, f32_.ddt_bias.data());
      ExpectSums(check_, name + " da_log", params.da_log, bf16_.da_log, f32_.da_log.data());
      ExpectSums(check_, name + " dd", params.dd, bf16_.dd, f32_.dd.data());
      return;
    }
    ExpectNear(check_, name + " y", y.DeviceDistance(type), 3e-6);
    ExpectNear(check_, name + " dxbc", dxbc.DeviceDistance(type), 3e-6);
    ExpectNear(check_, name + " ddt", ddt.DeviceDistance(type), 1e-5);
    ExpectNear(check_, name + " ddt_bias", RelativeDistance(params.ddt_bias, f32_.ddt_bias.data()),
               3e-5);
    ExpectNear(check_, name + " da_log", RelativeDistance(params.da_log, f32_.da_log.data()), 3e-5);
    ExpectNear(check_, name + " dd", RelativeDistance(params.dd, f32_.dd.data()), 3e-5);
  }

 private:
  std::function<float(int64_t, int64_t)> Values(float mean, float spread) {
    return [this, mean, spread](int64_t, int64_t) { return mean + spread * check_.Normal(); };
  }
  void RunCpu(MutableMatrix in_xbc, MutableMatrix in_dt, MutableMatrix in_dy, MutableMatrix out_y,
              MutableMatrix out_dxbc, MutableMatrix out_ddt, Params& params) {
    params = {before, before, before};
    const SequenceLayout layout = {.sequences = c_.sequences,
                                   .length = c_.length,
                                   .doc_begin = c_.mean_document ? documents.host() : nullptr};
    const ScanParams weights = {dt_bias.host(), a_log.host(), d.host()};
    MambaOps& cpu = check_.cpu().mamba();
    check_.ExpectOk("cpu " + c_.Name(), cpu.Forward(ScanForward{.shape = c_.shape,
                                                                .params = weights,
                                                                .layout = layout,
                                                                .xbc = Const(in_xbc),
                                                                .dt = Const(in_dt),
                                                                .y = out_y}));
    check_.ExpectOk("cpu " + c_.Name(),
                    cpu.Backward(ScanBackward{.shape = c_.shape,
                                              .params = weights,
                                              .layout = layout,
                                              .xbc = Const(in_xbc),
                                              .dt = Const(in_dt),
                                              .dy = Const(in_dy),
                                              .dxbc = out_dxbc,
                                              .ddt = out_ddt,
                                              .ddt_bias = params.ddt_bias.data(),
                                              .da_log = params.da_log.data(),
                                              .dd = params.dd.data()}));
  }

  LayerCheck& check_;
  const ScanCase c_;
  const int64_t tokens_;

 public:
  CheckTensor xbc, dt, dy, y, dxbc, ddt;
  CheckArray<float> dt_bias, a_log, d;
  CheckArray<int32_t> documents;
  const std::vector<float> before;
  size_t scratch_bytes = 0;  // of the last Run()

 private:
  Params f32_, bf16_;
};

// `path`: what must have run for BF16.
void CheckCase(LayerCheck& check, CudaMambaOps& ops, const ScanCase& c, const std::string& path,
               bool f32) {
  Problem problem(check, c);
  for (const DType type : {DType::kBf16, DType::kF32}) {
    if (type == DType::kF32 && !f32) continue;
    const std::string kind = type == DType::kF32 ? "simple" : path;
    const std::string name = absl::StrCat(c.Name(), type == DType::kF32 ? " f32 " : " bf16 ", kind);
    const Problem::Results first = problem.Run(ops, type);
    check.Expect(ops.LastPath() == kind + " backward", name + ": ran " + ops.LastPath());
    problem.Judge(name, type, first);
    check.Expect(first.Same(problem.Run(ops, type)), name + ": two runs differ");
    if (c.sequences > 1) {
      CudaMambaOps one_by_one(check.cuda());
      one_by_one.SetBatchBytes(1);
      one_by_one.UseSimpleScanOnly(path == "simple");
      one_by_one.UseHopper(path == "hopper");
      const size_t used = check.cuda().memory().use().used;
      const Problem::Results again = problem.Run(one_by_one, type);
      const size_t kept = check.cuda().memory().use().used - used;
      check.Expect(kept == problem.scratch_bytes,
                   absl::StrCat(name, ": keeps ", kept, " bytes, said ", problem.scratch_bytes));
      check.Expect(first.Same(again), name + ": batches of sequences change the result");
    }
  }
}

// A NaN reaches the outputs of its own token and no other sequence.
void CheckNan(LayerCheck& check, CudaMambaOps& ops, const ScanShape& shape) {
  const int64_t length = 150, bad = length + 20;
  CheckTensor xbc(check.cuda(), 3 * length, shape.xbc_cols(), [&](int64_t row, int64_t col) {
    return row == bad && col == 1 ? std::numeric_limits<float>::quiet_NaN() : check.Normal();
  });
  CheckTensor dt(check.cuda(), 3 * length, shape.heads,
                 [&](int64_t, int64_t) { return check.Normal() - 2; });
  CheckTensor y(check.cuda(), 3 * length, shape.d_inner());
  CheckArray<float> params(check.cuda(),
                           std::vector<float>(static_cast<size_t>(shape.heads), 0.5f));
  check.ExpectOk("scan of a NaN", ops.Forward(ScanForward{
                                      .shape = shape,
                                      .params = {params.device(), params.device(), params.device()},
                                      .layout = {.sequences = 3, .length = length},
                                      .xbc = Const(xbc.device()),
                                      .dt = Const(dt.device()),
                                      .y = y.device()}));
  const std::vector<float> values = y.DeviceValues();
  bool others = true;
  for (int64_t row = 0; row < 3 * length; ++row) {
    for (int64_t col = 0; col < shape.d_inner(); ++col) {
      if (row / length != 1) others = others && std::isfinite(values[row * shape.d_inner() + col]);
    }
  }
  check.Expect(std::isnan(values[bad * shape.d_inner() + 1]),
               "scan of a NaN in " + ops.LastPath() + ": its token's output is finite");
  check.Expect(others, "scan of a NaN in " + ops.LastPath() + ": it reaches other sequences");
}

// heads, head_dim, groups, state, chunk
void CheckHopperScan(LayerCheck& check, const MambaCheckOptions& options) {
  const bool small = options.small, few = options.few;
  CudaMambaOps hopper(check.cuda());
  for (const ScanCase& c : CasesOf<ScanCase>(
           few, {
                    {{2, 64, 1, 128, 128}, 2, 270, 90, 16},
                    {{1, 64, 1, 128, 128}, 1, 1},
                    {{3, 40, 1, 72, 128}, 2, 129, 0, 8},
                    {{5, 56, 1, 128, 128}, 1, 300, 30},
                    {{4, 64, 2, 120, 128}, 1, 257, 0, 0, 0, 2},
                    {{2, 176, 2, 128, 128}, 1, 150},
                    {{26, 64, 1, 128, 128}, 4, 129},  // pairs of lanes share the tiles of states
                })) {
    CheckCase(check, hopper, c, "hopper", false);
  }
  for (const auto& [mean, spread] :
       CasesOf<std::pair<float, float>>(few, {{-60, 1}, {-6, 2}, {0, 12}, {30, 1}, {-300, 200}})) {
    const ScanCase c = {{12, 64, 1, 128, 32}, 1, 200, 0, 0, mean, spread};
    CheckCase(check, hopper, c, "hopper", false);
  }
  CheckNan(check, hopper, {2, 64, 1, 128, 64});
  Report(check, "scan, Hopper");
  if (small) return;
  for (int begin = 1; begin < 300; begin += 7) {
    CheckCase(check, hopper, {{2, 64, 1, 128, 64}, 1, 300, begin}, "hopper", false);
  }
  for (const ScanCase& c : std::vector<ScanCase>{
           {{128, 64, 8, 128, 128}, 2, 1024},
           {{64, 64, 8, 128, 128}, 2, 1024, 300},
           {{112, 64, 1, 128, 128}, 1, 1500, 0, 8},
           {{64, 64, 8, 128, 128}, 3, 700, 0, 0, -6, 2},
       }) {
    CheckCase(check, hopper, c, "hopper", false);
  }
  Report(check, "scan, Hopper, documents of all lengths and shapes of models");
}

}  // namespace

// heads, head_dim, groups, state, chunk
void CheckMambaScan(LayerCheck& check, const MambaCheckOptions& options) {
  const bool small = options.small, few = options.few;
  CudaMambaOps ops(check.cuda()), simple(check.cuda());
  ops.UseHopper(false);
  simple.UseSimpleScanOnly(true);
  for (const ScanCase& c : CasesOf<ScanCase>(
           few, {
                    {{2, 16, 1, 16, 64}, 1, 1},
                    {{2, 16, 1, 48, 64}, 2, 20, 6},
                    {{3, 24, 1, 40, 128}, 2, 128, 0, 8},
                    {{4, 32, 2, 64, 16}, 1, 300, 40},
                    {{4, 64, 4, 64, 128}, 2, 129, 0},
                    {{2, 64, 1, 128, 128}, 2, 270, 90, 16},
                    {{2, 80, 2, 128, 128}, 1, 257},
                    {{3, 80, 1, 72, 100}, 2, 260, 3},
                    {{1, 128, 1, 24, 64}, 1, 140, 50},
                    {{2, 176, 2, 128, 128}, 1, 150},
                    {{32, 16, 1, 48, 64}, 4, 140, 50},  // pairs of lanes, lanes in parts
                })) {
    CheckCase(check, ops, c, "tiles", false);
  }
  Report(check, "scan, tiles");
  for (const ScanCase& c : CasesOf<ScanCase>(few, {
                                                      {{2, 3, 1, 5, 7}, 1, 1},
                                                      {{2, 3, 1, 5, 7}, 3, 24, 5},
                                                      {{3, 37, 3, 21, 33}, 2, 150, 30},
                                                      {{4, 16, 2, 16, 16}, 2, 140, 20, 3},
                                                      {{1, 70, 1, 40, 64}, 1, 90},
                                                      {{2, 8, 1, 160, 64}, 1, 260, 100},
                                                      {{4, 4, 2, 8, 16}, 2, 300, 0},
                                                  })) {
    CheckCase(check, simple, c, "simple", true);
  }
  Report(check, "scan, simple");
  for (const auto& [mean, spread] :
       CasesOf<std::pair<float, float>>(few, {{-60, 1}, {-12, 4}, {0, 12}, {30, 1}, {-300, 200}})) {
    const ScanCase c = {{3, 16, 1, 16, 32}, 2, 200, 0, 0, mean, spread};
    CheckCase(check, ops, c, "tiles", true);
    CheckCase(check, simple, c, "simple", false);
  }
  Report(check, "scan, steps of all sizes");
  for (int begin = 1; begin < (few ? 10 : small ? 40 : 300); begin += 7) {
    const ScanCase c = {{2, 16, 1, 16, 64}, 1, 300, begin};
    CheckCase(check, ops, c, "tiles", !small);
  }
  Report(check, "scan, documents of all lengths");
  CheckNan(check, ops, {4, 16, 2, 16, 64});
  CheckNan(check, simple, {4, 16, 2, 16, 64});
  check.Expect(!ops.Forward(ScanForward{.shape = {0, 16, 1, 16, 64}}).ok(),
               "a scan without heads is not refused");
  Report(check, "scan, NaN and refusals");
  if (small) return CheckHopperScan(check, options);
  for (const ScanCase& c : std::vector<ScanCase>{
           {{32, 16, 1, 48, 64}, 16, 256},
           {{128, 64, 8, 128, 128}, 2, 1024},
           {{128, 80, 8, 128, 128}, 1, 2048, 300},
           {{128, 80, 8, 128, 128}, 3, 700},
           {{112, 64, 1, 128, 128}, 1, 1500, 0, 8},
           {{16, 64, 2, 64, 128}, 8, 500, 77},
       }) {
    CheckCase(check, ops, c, "tiles", false);
  }
  Report(check, "scan, shapes of models");
  CheckHopperScan(check, options);
}

}  // namespace nibble
