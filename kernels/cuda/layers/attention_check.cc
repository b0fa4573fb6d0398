#include "kernels/cuda/layers/attention_check.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/layers/attention_check_data.h"
#include "kernels/cuda/layers/attention_large_check.h"
#include "kernels/cuda/layers/cuda_attention_ops.h"
#include "kernels/formats/bfloat16.h"

namespace nibble {
namespace {

using Values = std::function<float(int64_t, int64_t)>;

// One problem on the CPU in FP32 and BF16 and on the card.
class Trial {
 public:
  Trial(LayerCheck& check, const AttentionCase& problem)
      : Trial(check, problem, [&check, &problem](int64_t, int64_t) {
          return static_cast<float>(check.Normal() * problem.spread);
        }) {}
  Trial(LayerCheck& check, const AttentionCase& problem, const Values& qkv_values)
      : check_(check),
        problem_(problem),
        documents_(problem.DocBegin()),
        qkv_(check.cuda(), problem.tokens(), problem.qkv_cols(), qkv_values,
             problem.qkv_cols() + problem.gap),
        out_(check.cuda(), problem.tokens(), problem.out_cols(), {},
             problem.out_cols() + 2 * problem.gap),
        dout_(
            check.cuda(), problem.tokens(), problem.out_cols(),
            [&check](int64_t, int64_t) { return check.Normal(); },
            problem.out_cols() + 3 * problem.gap),
        dqkv_(check.cuda(), problem.tokens(), problem.qkv_cols(), {},
              problem.qkv_cols() + 4 * problem.gap),
        device_documents_(check.cuda(), documents_),
        device_lse_(check.cuda(), problem.tokens() * problem.heads),
        device_amax_(check.cuda(), 1),
        lse32_(static_cast<size_t>(problem.tokens() * problem.heads)),
        lse16_(lse32_.size()) {}

  AttentionForward Forward(const MutableMatrix& qkv, const MutableMatrix& out, float* lse,
                           float* amax, bool device) const {
    return {.shape = problem_.shape(),
            .layout = Layout(device),
            .qkv = View(qkv),
            .out = out,
            .lse = lse,
            .amax = amax,
            .caches = {}};
  }
  void RunCpuForward() {
    float amax;
    AttentionOps& cpu = check_.cpu().attention();
    check_.ExpectOk("cpu",
                    cpu.Forward(Forward(qkv_.f32(), out_.f32(), lse32_.data(), &amax, false)));
    check_.ExpectOk("cpu",
                    cpu.Forward(Forward(qkv_.bf16(), out_.bf16(), lse16_.data(), &amax, false)));
  }
  void RunCpuBackward() {
    AttentionOps& cpu = check_.cpu().attention();
    check_.ExpectOk("cpu", cpu.Backward(Backward(qkv_.f32(), out_.f32(), dout_.f32(), lse32_.data(),
                                                 dqkv_.f32(), false)));
    check_.ExpectOk("cpu", cpu.Backward(Backward(qkv_.bf16(), out_.bf16(), dout_.bf16(),
                                                 lse16_.data(), dqkv_.bf16(), false)));
  }
  AttentionForward DeviceForward() {
    return Forward(qkv_.device(), out_.device(), device_lse_.data(), device_amax_.data(), true);
  }
  AttentionBackward DeviceBackward() {
    return Backward(qkv_.device(), out_.device(), dout_.device(), device_lse_.data(),
                    dqkv_.device(), true);
  }

  // The forward and backward results of one set of kernels against the CPU's.
  void Compare(const std::string& name, CudaAttentionOps& ops) {
    check_.ExpectOk(name, ops.Forward(DeviceForward()));
    const std::string path = absl::StrCat(name, ", ", ops.LastPath());
    check_.ExpectClose(path, out_);
    check_.Expect(out_.GapsAreUntouched(), path + ": wrote between the rows of out");
    CompareLse(path);
    CompareAmax(path);
    const std::vector<float> first = out_.DeviceValues(), first_lse = device_lse_.Values();
    check_.ExpectOk(name, ops.Forward(DeviceForward()));
    check_.Expect(SameBits(first, out_.DeviceValues()) && SameBits(first_lse, device_lse_.Values()),
                  path + ": two runs differ");

    check_.ExpectOk(name, ops.Backward(DeviceBackward()));
    const std::string back = absl::StrCat(name, ", ", ops.LastPath());
    CompareGradients(back);
    check_.Expect(dqkv_.GapsAreUntouched(), back + ": wrote between the rows of dqkv");
    const std::vector<float> gradient = dqkv_.DeviceValues();
    check_.ExpectOk(name, ops.Backward(DeviceBackward()));
    check_.Expect(SameBits(gradient, dqkv_.DeviceValues()), back + ": two runs differ");
  }

  // The same with FP32 matrices.
  void CompareF32(const std::string& name, CudaAttentionOps& ops) {
    constexpr DType kF32 = DType::kF32;
    check_.ExpectOk(name, ops.Forward(Forward(qkv_.device(kF32), out_.device(kF32),
                                              device_lse_.data(), device_amax_.data(), true)));
    const std::string path = absl::StrCat(name, ", f32, ", ops.LastPath());
    const double distance = out_.DeviceDistance(kF32);
    check_.Expect(distance < 3e-6, absl::StrCat(path, ": ", distance, " from the CPU"));
    check_.Expect(out_.GapsAreUntouched(kF32), path + ": wrote between the rows of out");
    CompareLse(path);
    check_.ExpectOk(name,
                    ops.Backward(Backward(qkv_.device(kF32), out_.device(kF32), dout_.device(kF32),
                                          device_lse_.data(), dqkv_.device(kF32), true)));
    const double gradient = dqkv_.DeviceDistance(kF32);
    check_.Expect(gradient < 1e-5,
                  absl::StrCat(name, ", f32, ", ops.LastPath(), ": ", gradient, " from the CPU"));
    check_.Expect(dqkv_.GapsAreUntouched(kF32), path + ": wrote between the rows of dqkv");
  }

  // dq, dk and dv by themselves: their norms differ.
  void CompareGradients(const std::string& name) {
    const AttentionShape shape = problem_.shape();
    const std::vector<float> device = dqkv_.DeviceValues();
    const MutableMatrix exact = dqkv_.f32(), host = dqkv_.bf16();
    const int64_t begin[4] = {0, shape.out_cols(), shape.out_cols() + KeyColumns(),
                              shape.qkv_cols()};
    for (int part = 0; part < 3; ++part) {
      double of_device = 0, of_host = 0, norm = 0;
      for (int64_t r = 0; r < exact.rows; ++r) {
        for (int64_t c = begin[part]; c < begin[part + 1]; ++c) {
          const int64_t at = r * exact.stride + c;
          const double x = static_cast<const float*>(exact.data)[at];
          const double h = DecodeBf16(static_cast<const uint16_t*>(host.data)[at]);
          const double d = device[static_cast<size_t>(at)];
          of_device += (d - x) * (d - x);
          of_host += (h - x) * (h - x);
          norm += x * x;
        }
      }
      norm = std::max(norm, 1e-30);
      of_device = std::sqrt(of_device / norm);
      of_host = std::sqrt(of_host / norm);
      char text[160];
      std::snprintf(text, sizeof text, ": d%c %.3e from FP32, the CPU's BF16 %.3e", "qkv"[part],
                    of_device, of_host);
      // Gradients of a single token's scores are zeros but for rounding.
      const int64_t elements = exact.rows * (begin[part + 1] - begin[part]);
      check_.Expect(of_device <= LayerCheck::Allowance(elements) * of_host + 1e-5, name + text);
    }
  }

  void CompareLse(const std::string& name) {
    const std::vector<float> lse = device_lse_.Values();
    double worst = 0;
    for (size_t i = 0; i < lse.size(); ++i) {
      worst = std::max(worst, std::abs(double{lse[i]} - lse32_[i]) / (1 + std::abs(lse32_[i])));
      if (std::isnan(lse[i]) != std::isnan(lse32_[i])) worst = 1;
    }
    check_.Expect(worst < 2e-5, absl::StrCat(name, ": lse off by ", worst));
  }
  void CompareAmax(const std::string& name) {
    const std::vector<float> out = out_.DeviceValues();
    const MutableMatrix m = out_.bf16();
    float largest = 0;
    for (int64_t r = 0; r < m.rows; ++r) {
      for (int64_t c = 0; c < m.cols; ++c) {
        largest = std::fmax(largest, std::abs(out[static_cast<size_t>(r * m.stride + c)]));
      }
    }
    const float amax = device_amax_.Values()[0];
    check_.Expect(amax == largest, absl::StrCat(name, ": amax ", amax, " instead of ", largest));
  }
  static bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  CheckTensor& out() { return out_; }
  CheckTensor& dqkv() { return dqkv_; }
  std::vector<float> lse() { return device_lse_.Values(); }

 private:
  static ConstMatrix View(const MutableMatrix& m) {
    return {m.data, m.dtype, m.rows, m.cols, m.stride};
  }
  int64_t KeyColumns() const { return int64_t{problem_.kv_heads} * problem_.head_dim; }
  SequenceLayout Layout(bool device) const {
    const int32_t* documents = device ? device_documents_.data() : documents_.data();
    return {
        problem_.sequences, problem_.length, problem_.mean_document == 0 ? nullptr : documents, {}};
  }
  AttentionBackward Backward(const MutableMatrix& qkv, const MutableMatrix& out,
                             const MutableMatrix& dout, const float* lse, const MutableMatrix& dqkv,
                             bool device) const {
    return {problem_.shape(), Layout(device), View(qkv), View(out), View(dout), lse, dqkv};
  }

  LayerCheck& check_;
  const AttentionCase problem_;
  const std::vector<int32_t> documents_;
  CheckTensor qkv_, out_, dout_, dqkv_;
  DeviceArray<int32_t> device_documents_;
  DeviceArray<float> device_lse_, device_amax_;
  std::vector<float> lse32_, lse16_;
};

// Compares on one path; the shapes are ones that it takes.
void CheckCase(LayerCheck& check, CudaAttentionOps& ops, const AttentionCase& problem) {
  Trial trial(check, problem);
  trial.RunCpuForward();
  trial.RunCpuBackward();
  const bool hopper = ops.path_limit() == CudaAttentionOps::Path::kHopper;
  for (const int warpgroups : {2, 3}) {
    if (warpgroups == 3 && (!hopper || problem.head_dim != 64)) continue;
    ops.SetForwardWarpgroups(warpgroups);
    trial.Compare(problem.Name(), ops);
  }
  ops.SetForwardWarpgroups(0);
  if (ops.path_limit() == CudaAttentionOps::Path::kSimple) trial.CompareF32(problem.Name(), ops);
  if (problem.tokens() > 150) return;
  CudaAttentionOps fresh(check.cuda());
  fresh.SetPathLimit(ops.path_limit());
  const AttentionBackward backward = trial.DeviceBackward();
  check.ExpectKeeps(problem.Name(), fresh.ScratchBytes(backward),
                    [&] { check.ExpectOk(problem.Name(), fresh.Backward(backward)); });
}

// Incomplete tiles (64, 128, 192) at every place, groups, gaps, documents of all lengths.
std::vector<AttentionCase> HopperCases(bool large) {
  std::vector<AttentionCase> cases = {
      {1, 2, 1, 1, 64},          {2, 5, 2, 1, 128, 0, 8},
      {1, 64, 2, 2, 64},         {1, 65, 4, 2, 64, 0, 8},
      {1, 128, 2, 1, 128},       {1, 129, 1, 1, 128, 30, 16},
      {2, 200, 3, 1, 64, 50, 8}, {1, 320, 2, 1, 64},
      {1, 385, 2, 2, 128, 60},   {1, 300, 1, 1, 64, 0, 0, 8},  // scores in the hundreds
  };
  std::mt19937_64 random(5);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int i = 0; i < (large ? 40 : 4); ++i) {
    const int kv_heads = static_cast<int>(pick(1, large ? 3 : 2));
    const int group = static_cast<int>(pick(1, large ? 4 : 2));
    const int64_t longest = !large ? 150 : i % 4 == 0 ? 1500 : 500;
    cases.push_back({pick(1, 3), pick(1, longest), kv_heads * group, kv_heads,
                     i % 2 == 0 ? 64 : 128, i % 3 == 0 ? 0 : pick(1, 300), 8 * pick(0, 3)});
  }
  if (large) {
    cases.push_back({1, 2048, 4, 2, 64});
    cases.push_back({1, 2048, 4, 1, 128, 400});
    cases.push_back({30, 256, 12, 12, 64});  // more work than blocks
    cases.push_back({20, 256, 16, 8, 128, 100});
  }
  return cases;
}
std::vector<AttentionCase> MmaCases(bool large) {
  std::vector<AttentionCase> cases = HopperCases(large);
  const std::vector<AttentionCase> more = {{2, 300, 2, 1, 16, 40, 8},
                                           {1, 200, 2, 1, 32},
                                           {2, 128, 4, 2, 32, 20},
                                           {1, 150, 2, 1, 80, 60, 24},
                                           {1, 140, 1, 1, 96}};
  cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}
std::vector<AttentionCase> SimpleCases(bool large) {
  std::vector<AttentionCase> cases = {
      {1, 1, 1, 1, 8},         {2, 45, 2, 1, 2, 0, 1}, {2, 40, 4, 2, 24, 10, 3}, {1, 70, 2, 2, 20},
      {1, 33, 2, 1, 64, 7, 5}, {1, 40, 1, 1, 256},     {1, 35, 1, 1, 300, 9}};
  if (large) {
    cases.push_back({3, 500, 6, 2, 48, 90, 2});
    cases.push_back({1, 700, 2, 1, 128, 0, 1});
    cases.push_back({1, 100, 1, 1, 1024});
  }
  return cases;
}

// A bad number in q, k or v reaches what the CPU's FP32 reaches, apart from earlier tokens of the
// same block of 128 keys, whose probabilities are zero and may or may not be multiplied.
void CheckBadNumbers(LayerCheck& check, CudaAttentionOps& ops, bool large) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int head_dim : {64, 128}) {
    if (head_dim == 128 && !large) continue;
    for (int part = 0; part < 3; ++part) {
      for (const float bad : {nan, infinity, -infinity}) {
        if (bad == bad && !large) continue;
        const AttentionCase problem = {2, 300, 2, 2, head_dim, 0, 0, 0.3};
        const int64_t token = 450, column = (2 * part + 1) * head_dim + 5;
        Trial trial(check, problem, [&](int64_t r, int64_t c) {
          return r == token && c == column ? bad : 0.3f * check.Normal();
        });
        trial.RunCpuForward();
        check.ExpectOk("bad numbers", ops.Forward(trial.DeviceForward()));
        const std::string name = absl::StrCat(ops.LastPath(), ", ", head_dim, ", ", bad, " in ",
                                              std::string(1, "qkv"[part]));
        trial.CompareAmax(name);
        const std::vector<float> device = trial.out().DeviceValues();
        const MutableMatrix m = trial.out().f32();
        const float* exact = static_cast<const float*>(m.data);
        int64_t wrong = 0;
        for (int64_t r = 0; r < m.rows; ++r) {
          if (r >= 300 + 128 && r < token) continue;
          for (int64_t c = 0; c < m.cols; ++c) {
            const float x = exact[r * m.stride + c],
                        y = device[static_cast<size_t>(r * m.stride + c)];
            wrong += std::isnan(x) != std::isnan(y) || (std::isinf(x) && x != y);
          }
        }
        check.Expect(wrong == 0, absl::StrCat(name, ": ", wrong, " results are bad on one side"));
      }
    }
  }
}

void CheckRope(LayerCheck& check, CudaAttentionOps& ops) {
  for (const AttentionCase& problem : std::vector<AttentionCase>{{2, 37, 3, 1, 64, 10, 8},
                                                                 {1, 300, 4, 2, 128},
                                                                 {1, 50, 2, 1, 80, 7, 3},
                                                                 {1, 40, 2, 2, 12},
                                                                 {1, 33, 13, 1, 16, 0, 8},
                                                                 {1, 20, 1, 1, 256, 5}}) {
    for (const bool inverse : {false, true}) {
      CheckTensor qkv(
          check.cuda(), problem.tokens(), problem.qkv_cols(),
          [&](int64_t, int64_t) { return check.Normal(); }, problem.qkv_cols() + problem.gap);
      const std::vector<int32_t> documents = problem.DocBegin();
      DeviceArray<int32_t> device_documents(check.cuda(), documents);
      const std::string name = absl::StrCat("rope ", problem.Name(), inverse ? " inverse" : "");
      const auto run = [&](AttentionOps& to, const MutableMatrix& m, const int32_t* begin) {
        check.ExpectOk(name, to.Run({.shape = problem.shape(),
                                     .layout = {problem.sequences,
                                                problem.length,
                                                problem.mean_document == 0 ? nullptr : begin,
                                                {}},
                                     .qkv = m,
                                     .theta = 10000,
                                     .inverse = inverse}));
      };
      run(check.cpu().attention(), qkv.f32(), documents.data());
      run(check.cpu().attention(), qkv.bf16(), documents.data());
      run(ops, qkv.device(), device_documents.data());
      run(ops, qkv.device(DType::kF32), device_documents.data());
      check.ExpectClose(name, qkv);
      check.Expect(qkv.DeviceDistance(DType::kF32) < 1e-6, name + ": FP32 differs");
      check.Expect(qkv.GapsAreUntouched(), name + ": wrote between the rows");
    }
  }
}

// Three sequences over caches, in steps of prefill and decoding, against the CPU.
void CheckCaches(LayerCheck& check, CudaAttentionOps& ops, const AttentionShape& shape) {
  const int64_t capacity = 400, elements = shape.kv_heads * capacity * shape.head_dim;
  constexpr int kSequences = 3;
  std::vector<std::vector<float>> cpu32(2 * kSequences, std::vector<float>(elements));
  std::vector<std::vector<uint16_t>> cpu16(2 * kSequences, std::vector<uint16_t>(elements));
  std::vector<DeviceArray<uint16_t>> device;
  for (int i = 0; i < 2 * kSequences; ++i) device.emplace_back(check.cuda(), cpu16[0]);
  int64_t position[kSequences] = {};
  for (const std::vector<int64_t>& rows : std::vector<std::vector<int64_t>>{
           {70, 1, 200}, {1, 1, 1}, {130, 3, 1}, {1, 2, 1}, {1, 64, 1}}) {
    std::vector<Continuation> pieces;
    int64_t total = 0;
    for (int i = 0; i < kSequences; ++i) {
      pieces.push_back({total, rows[i], position[i]});
      total += rows[i];
      position[i] += rows[i];
    }
    CheckTensor qkv(
        check.cuda(), total, shape.qkv_cols(), [&](int64_t, int64_t) { return check.Normal(); },
        shape.qkv_cols() + 8);
    CheckTensor out(check.cuda(), total, shape.out_cols());
    const auto run = [&](AttentionOps& to, const MutableMatrix& q, const MutableMatrix& o,
                         const std::function<void*(int)>& cache) {
      std::vector<KvCache> caches;
      for (int i = 0; i < kSequences; ++i) {
        caches.push_back({cache(2 * i), cache(2 * i + 1), capacity});
      }
      SequenceLayout layout;
      layout.continued = pieces;
      check.ExpectOk("rope over caches", to.Run({.shape = shape, .layout = layout, .qkv = q}));
      const ConstMatrix in = {q.data, q.dtype, q.rows, q.cols, q.stride};
      check.ExpectOk("caches", to.Forward({.shape = shape,
                                           .layout = layout,
                                           .qkv = in,
                                           .out = o,
                                           .lse = nullptr,
                                           .amax = nullptr,
                                           .caches = caches}));
    };
    run(check.cpu().attention(), qkv.f32(), out.f32(), [&](int i) { return cpu32[i].data(); });
    run(check.cpu().attention(), qkv.bf16(), out.bf16(), [&](int i) { return cpu16[i].data(); });
    run(ops, qkv.device(), out.device(), [&](int i) { return device[i].data(); });
    // For few rows the CPU keeps probabilities in FP32; the mma kernel rounds them always.
    const double of_device = out.DeviceDistance(), of_host = out.HostDistance();
    check.Expect(of_device <= 1.3 * of_host,
                 absl::StrCat(ops.LastPath(), ", head_dim ", shape.head_dim, ", ", total,
                              " rows: ", of_device, " from FP32, the CPU's BF16 ", of_host));
  }
}

void CheckRefusals(LayerCheck& check, CudaAttentionOps& ops) {
  DeviceArray<float> some(check.cuda(), 4 * 2048);
  absl::Status refused = ops.Forward({.shape = {1, 1, 1025, 1.0f},
                                      .layout = {1, 1, nullptr, {}},
                                      .qkv = {some.data(), DType::kBf16, 1, 3 * 1025, 3 * 1025},
                                      .out = {some.data(), DType::kBf16, 1, 1025, 1025},
                                      .lse = some.data(),
                                      .amax = nullptr,
                                      .caches = {}});
  check.Expect(refused.code() == absl::StatusCode::kUnimplemented,
               "head_dim 1025 is not refused: " + refused.ToString());
  DeviceArray<float> amax(check.cuda(), 1);
  const absl::Status status = ops.Forward({.shape = {2, 1, 64, 1.0f},
                                           .layout = {0, 128, nullptr, {}},
                                           .qkv = {nullptr, DType::kBf16, 0, 256, 256},
                                           .out = {nullptr, DType::kBf16, 0, 128, 128},
                                           .lse = nullptr,
                                           .amax = amax.data(),
                                           .caches = {}});
  check.ExpectOk("no sequences", status);
  check.Expect(amax.Values()[0] == 0, "amax of no sequences is not 0");
}

// Runs a group of checks and prints how it ended.
void Group(LayerCheck& check, const std::string& name, const std::function<void()>& run) {
  std::printf("%-60s ", name.c_str());
  std::fflush(stdout);
  const int64_t checks = check.checks(), failures = check.failures();
  const auto begin = std::chrono::steady_clock::now();
  run();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%ld checks, %ld failures, %.1f s\n", static_cast<long>(check.checks() - checks),
              static_cast<long>(check.failures() - failures), seconds.count());
  std::fflush(stdout);
}

void CheckPath(LayerCheck& check, CudaAttentionOps::Path path, bool large) {
  using Path = CudaAttentionOps::Path;
  const std::string name = NameOf(path);
  CudaAttentionOps ops(check.cuda());
  ops.SetPathLimit(path);
  const std::vector<AttentionCase> cases = path == Path::kHopper ? HopperCases(large)
                                           : path == Path::kMma  ? MmaCases(large)
                                                                 : SimpleCases(large);
  for (const AttentionCase& problem : cases) {
    Group(check, absl::StrCat(name, " ", problem.Name()), [&] { CheckCase(check, ops, problem); });
  }
  if (path == Path::kSimple) return;
  Group(check, name + " bad numbers", [&] { CheckBadNumbers(check, ops, large); });
  for (const AttentionCase& problem : TrainingShapes()) {
    if (!large) break;
    Group(check, absl::StrCat(name, " ", problem.Name()),
          [&] { CheckTrainingShape(check, ops, problem); });
  }
}

void CheckRows(LayerCheck& check) {
  using Path = CudaAttentionOps::Path;
  CudaAttentionOps ops(check.cuda());
  Group(check, "rows refusals", [&] { CheckRefusals(check, ops); });
  Group(check, "rows rope", [&] { CheckRope(check, ops); });
  for (const int head_dim : {32, 64, 128}) {
    Group(check, absl::StrCat("rows mma over caches, head_dim ", head_dim), [&] {
      CheckCaches(check, ops, {6, 2, head_dim, 0.125f});
    });
  }
  ops.SetPathLimit(Path::kSimple);
  for (const int head_dim : {20, 64}) {
    Group(check, absl::StrCat("rows simple over caches, head_dim ", head_dim), [&] {
      CheckCaches(check, ops, {4, 2, head_dim, 0.125f});
    });
  }
}

}  // namespace

void CheckAttention(LayerCheck& check, const AttentionCheckOptions& options) {
  using Path = CudaAttentionOps::Path;
  if (options.Wants("rows")) CheckRows(check);
  if (options.Wants("simple")) CheckPath(check, Path::kSimple, options.large);
  if (options.Wants("mma")) CheckPath(check, Path::kMma, options.large);
  if (options.Wants("hopper")) CheckPath(check, Path::kHopper, options.large);
}

}  // namespace nibble
