#include "kernels/cuda/layers/attention_large_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/check_data.h"
#include "kernels/cuda/layers/attention_check.h"
#include "kernels/formats/bfloat16.h"

namespace nibble {
namespace {

// Matrices in device memory at the sizes of training.
struct LargeRun {
  LargeRun(LayerCheck& check, const AttentionCase& problem, uint64_t seed)
      : problem(problem),
        qkv(Random(check, problem.tokens() * problem.qkv_cols(), seed)),
        dout(Random(check, problem.tokens() * problem.out_cols(), seed + 1)),
        out(check.cuda(), problem.tokens() * problem.out_cols()),
        dqkv(check.cuda(), problem.tokens() * problem.qkv_cols()),
        documents(check.cuda(), problem.DocBegin()),
        lse(check.cuda(), problem.tokens() * problem.heads) {}

  static DeviceArray<uint16_t> Random(LayerCheck& check, int64_t count, uint64_t seed) {
    std::vector<uint16_t> values(static_cast<size_t>(count));
    FillMatrix(check.pool(), Temper::kNormal, seed, true, values.data(), count / 64, 64, 64);
    return {check.cuda(), values};
  }
  SequenceLayout layout() const {
    return {problem.sequences,
            problem.length,
            problem.mean_document == 0 ? nullptr : documents.data(),
            {}};
  }
  static ConstMatrix In(const DeviceArray<uint16_t>& a, int64_t rows, int64_t cols) {
    return {a.data(), DType::kBf16, rows, cols, cols};
  }
  MutableMatrix Out(const DeviceArray<uint16_t>& a, int64_t cols) const {
    return {a.data(), DType::kBf16, problem.tokens(), cols, cols};
  }
  absl::Status Forward(AttentionOps& ops) const {
    return ops.Forward({.shape = problem.shape(),
                        .layout = layout(),
                        .qkv = In(qkv, problem.tokens(), problem.qkv_cols()),
                        .out = Out(out, problem.out_cols()),
                        .lse = lse.data(),
                        .amax = nullptr,
                        .caches = {}});
  }
  absl::Status Backward(AttentionOps& ops) const {
    return ops.Backward({problem.shape(), layout(), In(qkv, problem.tokens(), problem.qkv_cols()),
                         In(out, problem.tokens(), problem.out_cols()),
                         In(dout, problem.tokens(), problem.out_cols()), lse.data(),
                         Out(dqkv, problem.qkv_cols())});
  }
  absl::Status Rotate(AttentionOps& ops) const {
    return ops.Run(
        {.shape = problem.shape(), .layout = layout(), .qkv = Out(qkv, problem.qkv_cols())});
  }

  const AttentionCase problem;
  DeviceArray<uint16_t> qkv, dout, out, dqkv;
  DeviceArray<int32_t> documents;
  DeviceArray<float> lse;
};

// Columns [from, from + count) of rows [row, row + rows) of `m`, put at column `to` of `part`.
void CopyColumns(const std::vector<uint16_t>& m, int64_t stride, int64_t row, int64_t rows,
                 int64_t from, int64_t count, std::vector<uint16_t>& part, int64_t part_stride,
                 int64_t to) {
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(m.begin() + (row + r) * stride + from, count, part.begin() + r * part_stride + to);
  }
}
std::vector<float> Decoded(const std::vector<uint16_t>& bits) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = DecodeBf16(bits[i]);
  return values;
}
double DistanceOf(const std::vector<uint16_t>& a, const std::vector<float>& b, int64_t stride,
                  int64_t begin, int64_t end) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const int64_t column = static_cast<int64_t>(i) % stride;
    if (column < begin || column >= end) continue;
    const double x = DecodeBf16(a[i]), y = b[i];
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(difference / norm);
}

// The last key head of the last sequence, with its query heads, against the CPU.
void CompareLastHead(LayerCheck& check, const LargeRun& run, const std::string& name) {
  const AttentionCase& problem = run.problem;
  const int group = problem.heads / problem.kv_heads, dim = problem.head_dim;
  const int64_t length = problem.length, row = (problem.sequences - 1) * length;
  const AttentionShape whole = problem.shape();
  const AttentionShape shape = {group, 1, dim, whole.scale};
  const int64_t qkv_cols = shape.qkv_cols(), out_cols = shape.out_cols();
  const int64_t query = int64_t{problem.heads - group} * dim;
  const int64_t key = int64_t{problem.heads + problem.kv_heads - 1} * dim;
  const int64_t value = whole.qkv_cols() - dim;
  const auto qkv_part = [&](const std::vector<uint16_t>& m) {
    std::vector<uint16_t> part(static_cast<size_t>(length * qkv_cols));
    CopyColumns(m, whole.qkv_cols(), row, length, query, out_cols, part, qkv_cols, 0);
    CopyColumns(m, whole.qkv_cols(), row, length, key, dim, part, qkv_cols, out_cols);
    CopyColumns(m, whole.qkv_cols(), row, length, value, dim, part, qkv_cols, out_cols + dim);
    return part;
  };
  const auto out_part = [&](const std::vector<uint16_t>& m) {
    std::vector<uint16_t> part(static_cast<size_t>(length * out_cols));
    CopyColumns(m, whole.out_cols(), row, length, query, out_cols, part, out_cols, 0);
    return part;
  };
  std::vector<uint16_t> qkv = qkv_part(run.qkv.Values()), dout = out_part(run.dout.Values());
  std::vector<float> qkv32 = Decoded(qkv), dout32 = Decoded(dout);
  std::vector<uint16_t> out(dout.size()), dqkv(qkv.size());
  std::vector<float> out32(out.size()), dqkv32(qkv.size());
  std::vector<float> lse(static_cast<size_t>(length * group)), lse32(lse.size());
  const std::vector<int32_t> documents = run.documents.Values();
  const auto run_cpu = [&](DType dtype, void* q, void* o, void* d, float* l, void* dq) {
    const SequenceLayout layout = {
        1, length, problem.mean_document == 0 ? nullptr : documents.data() + row, {}};
    AttentionOps& cpu = check.cpu().attention();
    check.ExpectOk("cpu", cpu.Forward({.shape = shape,
                                       .layout = layout,
                                       .qkv = {q, dtype, length, qkv_cols, qkv_cols},
                                       .out = {o, dtype, length, out_cols, out_cols},
                                       .lse = l,
                                       .amax = nullptr,
                                       .caches = {}}));
    check.ExpectOk("cpu", cpu.Backward({shape,
                                        layout,
                                        {q, dtype, length, qkv_cols, qkv_cols},
                                        {o, dtype, length, out_cols, out_cols},
                                        {d, dtype, length, out_cols, out_cols},
                                        l,
                                        {dq, dtype, length, qkv_cols, qkv_cols}}));
  };
  run_cpu(DType::kF32, qkv32.data(), out32.data(), dout32.data(), lse32.data(), dqkv32.data());
  run_cpu(DType::kBf16, qkv.data(), out.data(), dout.data(), lse.data(), dqkv.data());
  const auto judge = [&](const char* what, const std::vector<uint16_t>& device,
                         const std::vector<uint16_t>& host, const std::vector<float>& exact,
                         int64_t stride, int64_t begin, int64_t end) {
    const double of_device = DistanceOf(device, exact, stride, begin, end);
    const double of_host = DistanceOf(host, exact, stride, begin, end);
    check.Expect(of_device <= 1.1 * of_host, absl::StrCat(name, ": ", what, " ", of_device,
                                                          " from FP32, the CPU's BF16 ", of_host));
  };
  judge("out", out_part(run.out.Values()), out, out32, out_cols, 0, out_cols);
  const std::vector<uint16_t> gradient = qkv_part(run.dqkv.Values());
  judge("dq", gradient, dqkv, dqkv32, qkv_cols, 0, out_cols);
  judge("dk", gradient, dqkv, dqkv32, qkv_cols, out_cols, out_cols + dim);
  judge("dv", gradient, dqkv, dqkv32, qkv_cols, out_cols + dim, qkv_cols);
}

void TimePath(LayerCheck& check, CudaAttentionOps::Path path) {
  const bool hopper = path == CudaAttentionOps::Path::kHopper;
  CudaAttentionOps ops(check.cuda());
  ops.SetPathLimit(path);
  for (const AttentionCase& problem : TrainingShapes()) {
    const LargeRun a(check, problem, 7), b(check, problem, 17);
    const LargeRun* const runs[2] = {&a, &b};
    const double pairs = problem.VisiblePairs() * problem.heads * problem.head_dim;
    const double tokens = static_cast<double>(problem.tokens());
    const double qkv = tokens * static_cast<double>(problem.qkv_cols()) * 2;
    const double out = tokens * static_cast<double>(problem.out_cols()) * 2;
    const double lse = tokens * problem.heads * 4;
    const double rotated = tokens * (problem.heads + problem.kv_heads) * problem.head_dim * 2;
    const auto time = [&](const std::string& what, double bytes, double flops,
                          absl::Status (LargeRun::*run)(AttentionOps&) const) {
      check.Time(
          absl::StrCat(NameOf(path), " ", what, " ", problem.Name()), bytes, flops,
          [&](int i) { return (runs[i % 2]->*run)(ops); }, hopper ? 30 : 5);
    };
    if (hopper) time("rope", 2 * rotated, 0, &LargeRun::Rotate);
    time("forward", qkv + out + lse, 4 * pairs, &LargeRun::Forward);
    for (const int warpgroups : {2, 3}) {
      if (!hopper || problem.head_dim != 64) continue;
      ops.SetForwardWarpgroups(warpgroups);
      time(absl::StrCat("forward, ", warpgroups, " warpgroups"), qkv + out + lse, 4 * pairs,
           &LargeRun::Forward);
    }
    ops.SetForwardWarpgroups(0);
    time("backward", 2 * qkv + 2 * out + lse, 10 * pairs, &LargeRun::Backward);
  }
}

// Decoding one token of each of `sequences`, `keys` into theirs.
void TimeRows(LayerCheck& check) {
  CudaAttentionOps ops(check.cuda());
  const AttentionShape shape = {16, 8, 128, 0.088f};
  for (const auto& [sequences, keys] :
       std::vector<std::pair<int, int64_t>>{{1, 1024}, {1, 32768}, {32, 1024}, {32, 4096}}) {
    const int64_t elements = shape.kv_heads * keys * shape.head_dim;
    const DeviceArray<uint16_t> cached = LargeRun::Random(check, sequences * elements, 3);
    const DeviceArray<uint16_t> qkv = LargeRun::Random(check, 32 * shape.qkv_cols(), 4);
    const DeviceArray<uint16_t> out(check.cuda(), 32 * shape.out_cols());
    std::vector<Continuation> pieces;
    std::vector<KvCache> caches;
    for (int i = 0; i < sequences; ++i) {
      pieces.push_back({i, 1, keys - 1});
      uint16_t* const at = cached.data() + i * elements;
      caches.push_back({at, at, keys});
    }
    SequenceLayout layout;
    layout.continued = pieces;
    check.Time(
        absl::StrCat("decode ", sequences, " x ", keys, " keys, heads 16/8 x 128"),
        4.0 * static_cast<double>(sequences * elements), 0, [&, sequences = sequences](int) {
          return ops.Forward(
              {.shape = shape,
               .layout = layout,
               .qkv = {qkv.data(), DType::kBf16, sequences, shape.qkv_cols(), shape.qkv_cols()},
               .out = {out.data(), DType::kBf16, sequences, shape.out_cols(), shape.out_cols()},
               .lse = nullptr,
               .amax = nullptr,
               .caches = caches});
        });
  }
}

}  // namespace

const std::vector<AttentionCase>& TrainingShapes() {
  static const std::vector<AttentionCase> shapes = {
      {4, 4096, 16, 8, 128},       {4, 4096, 16, 8, 128, 700}, {64, 1024, 12, 12, 64},
      {64, 1024, 12, 12, 64, 700}, {2, 8192, 40, 8, 128},      {2, 8192, 40, 8, 128, 700},
      {1, 32768, 4, 2, 128},       {1, 32768, 4, 2, 64, 3000}};
  return shapes;
}

void CheckTrainingShape(LayerCheck& check, CudaAttentionOps& ops, const AttentionCase& problem) {
  const LargeRun run(check, problem, 3);
  std::vector<uint16_t> out, dqkv;
  std::string name;
  for (int again = 0; again < 3; ++again) {
    check.ExpectOk(problem.Name(), run.Forward(ops));
    check.ExpectOk(problem.Name(), run.Backward(ops));
    name = absl::StrCat(problem.Name(), ", ", ops.LastPath());
    if (again == 0) {
      out = run.out.Values();
      dqkv = run.dqkv.Values();
      continue;
    }
    check.Expect(out == run.out.Values(), name + ": two forward runs differ");
    check.Expect(dqkv == run.dqkv.Values(), name + ": two backward runs differ");
  }
  CompareLastHead(check, run, name);
}

void TimeAttention(LayerCheck& check, const AttentionCheckOptions& options) {
  using Path = CudaAttentionOps::Path;
  if (options.Wants("rows")) TimeRows(check);
  if (options.Wants("hopper")) TimePath(check, Path::kHopper);
  if (options.Wants("mma")) TimePath(check, Path::kMma);
}

}  // namespace nibble
