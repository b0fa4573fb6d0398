#include "kernels/cpu/layers/cpu_scan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/layers/subnormals_scope.h"

namespace nibble::cpu {
namespace {

// Groups are divided into blocks of heads until there are at least this many tasks, but not into
// smaller blocks: each computes C·Bᵀ for itself.
constexpr int64_t kMinTasks = 16;
constexpr int64_t kMinHeads = 4;

void AddTo(float& to, double x) { to = static_cast<float>(to + x); }

}  // namespace

template <class T>
CpuScan<T>::CpuScan(ThreadPool& pool, PanelIsa isa)
    : pool_(pool),
      kernels_(TableFor<ScanKernels, T>(isa)),
      states_(pool, kernels_, *PanelGemmFor<T>(isa)) {
  for (int i = 0; i < pool.threads(); ++i) {
    forward_.emplace_back(kernels_, *PanelGemmFor<T>(isa));
    backward_.emplace_back(kernels_, *PanelGemmFor<T>(isa));
  }
}

template <class T>
void CpuScan<T>::Start(const ScanShape& shape, const ScanParams& params,
                       const SequenceLayout& layout, const ConstMatrix& xbc,
                       const ConstMatrix& dt) {
  plan_.Reset(layout, shape.chunk);
  rate_.resize(shape.heads);
  for (int h = 0; h < shape.heads; ++h) rate_[h] = -std::exp(double{params.a_log[h]});
  problem_ = {.shape = shape,
              .dt_bias = params.dt_bias,
              .d = params.d,
              .rate = rate_.data(),
              .plan = &plan_,
              .xbc = {static_cast<const T*>(xbc.data), xbc.stride},
              .dt = {static_cast<const T*>(dt.data), dt.stride}};
}

template <class T>
int64_t CpuScan<T>::HeadBlocks(int64_t chunks) const {
  const int64_t tasks = chunks * problem_.shape.groups;
  return std::clamp<int64_t>((kMinTasks + tasks - 1) / tasks, 1,
                             std::max<int64_t>(1, problem_.heads_per_group() / kMinHeads));
}

template <class T>
ScanTask CpuScan<T>::TaskOf(int64_t index, int64_t chunk_begin, int64_t blocks) const {
  const int64_t groups = problem_.shape.groups, heads = problem_.heads_per_group();
  const int64_t block = index % blocks, group = index / blocks % groups;
  return {.chunk = chunk_begin + index / blocks / groups,
          .group = group,
          .head_begin = group * heads + block * heads / blocks,
          .head_end = group * heads + (block + 1) * heads / blocks};
}

template <class T>
void CpuScan<T>::Run(const ScanForward& request) {
  Start(request.shape, request.params, request.layout, request.xbc, request.dt);
  const TokenBlock<T> y = {static_cast<T*>(request.y.data), request.y.stride};
  const int64_t batch = ScanStates<T>::BatchOf(problem_, false) * plan_.chunks_per_sequence();
  for (int64_t begin = 0; begin < plan_.count(); begin += batch) {
    const int64_t end = std::min(plan_.count(), begin + batch);
    states_.Forward(problem_, begin, end);
    const int64_t blocks = HeadBlocks(end - begin);
    pool_.ParallelFor((end - begin) * problem_.shape.groups * blocks, [&](int64_t i, int thread) {
      const PanelThreadScope scope;
      const SubnormalsAreZero no_subnormals;
      forward_[thread].Run(problem_, states_, TaskOf(i, begin, blocks), y);
    });
  }
}

template <class T>
void CpuScan<T>::Run(const ScanBackward& request) {
  Start(request.shape, request.params, request.layout, request.xbc, request.dt);
  problem_.dy = {static_cast<const T*>(request.dy.data), request.dy.stride};
  const int64_t heads = problem_.shape.heads, groups = problem_.shape.groups;
  const ScanGradients<T> out = {.dxbc = {static_cast<T*>(request.dxbc.data), request.dxbc.stride},
                                .ddt = {static_cast<T*>(request.ddt.data), request.ddt.stride},
                                .sums = sums_.Get(plan_.count() * heads)};
  const int64_t size = int64_t{plan_.tokens()} * problem_.shape.state;
  const int64_t batch = ScanStates<T>::BatchOf(problem_, true) * plan_.chunks_per_sequence();
  for (int64_t begin = 0; begin < plan_.count(); begin += batch) {
    const int64_t end = std::min(plan_.count(), begin + batch);
    states_.Backward(problem_, begin, end);
    const int64_t blocks = HeadBlocks(end - begin);
    const int64_t tasks = (end - begin) * groups * blocks;
    float* gradients = group_gradients_.Get((blocks == 1 ? pool_.threads() : tasks) * 2 * size);
    pool_.ParallelFor(tasks, [&](int64_t i, int thread) {
      const PanelThreadScope scope;
      const SubnormalsAreZero no_subnormals;
      const ScanTask task = TaskOf(i, begin, blocks);
      float* db = gradients + (blocks == 1 ? thread : i) * 2 * size;
      backward_[thread].Run(problem_, states_, task, out, db, db + size);
      if (blocks == 1) WriteGroup(task.chunk, task.group, db, db + size, out.dxbc);
    });
    if (blocks == 1) continue;
    pool_.ParallelFor((end - begin) * groups, [&](int64_t i, int) {
      const int64_t chunk = begin + i / groups;
      const int64_t used = int64_t{plan_.chunk(chunk).tokens} * problem_.shape.state;
      float* db = gradients + i * blocks * 2 * size;
      for (int64_t block = 1; block < blocks; ++block) {
        kernels_.add(db + block * 2 * size, used, db);
        kernels_.add(db + block * 2 * size + size, used, db + size);
      }
      WriteGroup(chunk, i % groups, db, db + size, out.dxbc);
    });
  }
  for (int64_t h = 0; h < heads; ++h) {
    ScanHeadSums sum = {};
    for (int64_t c = 0; c < plan_.count(); ++c) {
      sum.ddt += out.sums[c * heads + h].ddt;
      sum.da_delta += out.sums[c * heads + h].da_delta;
      sum.dd += out.sums[c * heads + h].dd;
    }
    AddTo(request.ddt_bias[h], sum.ddt);
    AddTo(request.da_log[h], rate_[h] * sum.da_delta);
    AddTo(request.dd[h], sum.dd);
  }
}

template <class T>
void CpuScan<T>::WriteGroup(int64_t chunk, int64_t group, const float* db, const float* dc,
                            TokenBlock<T> dxbc) const {
  const ScanChunk& here = plan_.chunk(chunk);
  const int state = problem_.shape.state;
  const auto write = [&](const float* from, int64_t col) {
    kernels_.round_rows(from, here.tokens, state, ScanProblem<T>::At(dxbc, here.row, col));
  };
  write(db, problem_.BCol(group));
  write(dc, problem_.CCol(group));
}

template class CpuScan<float>;
template class CpuScan<uint16_t>;

}  // namespace nibble::cpu
