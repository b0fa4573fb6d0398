#include "kernels/cpu/layers/scan_states.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/layers/panel_layout.h"
#include "kernels/cpu/layers/subnormals_scope.h"

namespace nibble::cpu {
namespace {

// Bound of the states of a batch: about the size of a last-level cache.
constexpr int64_t kBatchBytes = int64_t{64} << 20;
// Heads are divided into parts until there are this many tasks.
constexpr int64_t kMinTasks = 16;

int64_t DivideUp(int64_t x, int64_t by) { return (x + by - 1) / by; }
int64_t RoundUp(int64_t x, int64_t to) { return DivideUp(x, to) * to; }

}  // namespace

template <class T>
int64_t ScanStates<T>::BatchOf(const ScanProblem<T>& problem, bool backward) {
  const ScanShape& shape = problem.shape;
  const int64_t elements =
      problem.plan->chunks_per_sequence() * shape.d_inner() * shape.state * (backward ? 2 : 1);
  return std::max<int64_t>(1, kBatchBytes / (elements * static_cast<int64_t>(sizeof(T))));
}

template <class T>
void ScanStates<T>::Start(const ScanProblem<T>& problem, int64_t chunk_begin, int64_t chunk_end,
                          bool backward) {
  problem_ = problem;
  chunk_begin_ = chunk_begin;
  chunk_end_ = chunk_end;
  const ScanPlan& plan = *problem.plan;
  const ScanShape& shape = problem.shape;
  const int64_t chunks = chunk_end - chunk_begin;
  const int64_t sequences = chunks / plan.chunks_per_sequence();
  const int64_t cuts = std::clamp<int64_t>(DivideUp(kMinTasks, sequences * shape.heads), 1,
                                           DivideUp(shape.head_dim, kPanelLines));
  part_width_ = static_cast<int>(RoundUp(DivideUp(shape.head_dim, cuts), kPanelLines));
  parts_ = DivideUp(shape.head_dim, part_width_);
  state_size_ = PanelElements(shape.head_dim, shape.state);
  turned_size_ = PanelElements(shape.state, plan.tokens());

  const int64_t head_decay = ScanDecay::kArrays * plan.padded();
  float* decays = decays_.Get(chunks * shape.heads * head_decay);
  decays_at_ = decays;
  states_at_ = states_.Get(chunks * shape.heads * state_size_);
  turned_b_at_ = turned_b_.Get(chunks * shape.groups * turned_size_);
  if (backward) {
    gradients_at_ = gradients_.Get(chunks * shape.heads * state_size_);
    turned_c_at_ = turned_c_.Get(chunks * shape.groups * turned_size_);
    carried_at_ = carried_.Get(chunks * shape.heads * parts_);
  }
  pool_.ParallelFor(chunks, [&](int64_t i, int) {
    const SubnormalsAreZero no_subnormals;
    const ScanChunk& chunk = plan.chunk(chunk_begin + i);
    kernels_.decays(ScanProblem<T>::At(problem.dt, chunk.row, 0), chunk.tokens, plan.padded(),
                    shape.heads, problem.dt_bias, problem.rate,
                    decays + i * shape.heads * head_decay);
    for (int64_t g = 0; g < shape.groups; ++g) {
      const auto turn = [&](TokenBlock<const T> m, T* to) {
        panel_.pack_a({m.data, m.stride, true}, shape.state, chunk.tokens,
                      to + (i * shape.groups + g) * turned_size_);
      };
      turn(problem.B(chunk.row, g), turned_b_at_);
      if (backward) turn(problem.C(chunk.row, g), turned_c_at_);
    }
  });
}

template <class T>
template <class Sweep>
void ScanStates<T>::ForParts(Sweep&& sweep) {
  const int64_t per_sequence = problem_.plan->chunks_per_sequence();
  const int64_t sequences = (chunk_end_ - chunk_begin_) / per_sequence;
  const int64_t heads = problem_.shape.heads;
  pool_.ParallelFor(sequences * heads * parts_, [&](int64_t task, int thread) {
    const int64_t index = task % parts_;
    const int64_t first = chunk_begin_ + task / parts_ / heads * per_sequence;
    const Part part = {
        .chunk_begin = first,
        .chunk_end = first + per_sequence,
        .head = task / parts_ % heads,
        .index = index,
        .begin = static_cast<int>(index) * part_width_,
        .end = std::min(problem_.shape.head_dim, static_cast<int>(index + 1) * part_width_)};
    const PanelThreadScope scope;
    const SubnormalsAreZero no_subnormals;
    sweep(part, rooms_[thread]);
  });
}

template <class T>
void ScanStates<T>::Forward(const ScanProblem<T>& problem, int64_t chunk_begin, int64_t chunk_end) {
  Start(problem, chunk_begin, chunk_end, false);
  ForParts([&](const Part& part, Room& room) { SweepStates(part, false, room); });
}

template <class T>
void ScanStates<T>::Backward(const ScanProblem<T>& problem, int64_t chunk_begin,
                             int64_t chunk_end) {
  Start(problem, chunk_begin, chunk_end, true);
  ForParts([&](const Part& part, Room& room) {
    SweepStates(part, true, room);
    SweepGradients(part, room);
  });
}

template <class T>
ScanDecay ScanStates<T>::decay(int64_t chunk, int64_t head) const {
  const int64_t padded = problem_.plan->padded();
  const int64_t index = (chunk - chunk_begin_) * problem_.shape.heads + head;
  return ScanDecay::At(decays_at_ + index * ScanDecay::kArrays * padded, padded);
}

template <class T>
double ScanStates<T>::carried(int64_t chunk, int64_t head) const {
  const double* parts =
      carried_at_ + ((chunk - chunk_begin_) * problem_.shape.heads + head) * parts_;
  double sum = 0;
  for (int64_t i = 0; i < parts_; ++i) sum += parts[i];
  return sum;
}

template <class T>
ScanEdges ScanStates<T>::EdgesOf(int64_t chunk, int64_t head, Room& room) const {
  const int padded = problem_.plan->padded();
  const ScanEdges edges = ScanEdges::At(room.edges.Get(ScanEdges::kArrays * padded), padded);
  const ScanChunk& here = problem_.plan->chunk(chunk);
  kernels_.edges(decay(chunk, head), here.tokens, padded, here.entering, here.last_doc, edges);
  return edges;
}

template <class T>
const T* ScanStates<T>::TurnedB(int64_t chunk, int64_t head) const {
  const int64_t group = head / problem_.heads_per_group();
  return turned_b_at_ + ((chunk - chunk_begin_) * problem_.shape.groups + group) * turned_size_;
}

template <class T>
const T* ScanStates<T>::TurnedC(int64_t chunk, int64_t head) const {
  const int64_t group = head / problem_.heads_per_group();
  return turned_c_at_ + ((chunk - chunk_begin_) * problem_.shape.groups + group) * turned_size_;
}

// S′ = exp(s_q) S + Σ_j exp(s_q − s_j) B_j u_jᵀ
template <class T>
void ScanStates<T>::SweepStates(const Part& part, bool backward, Room& room) {
  const ScanShape& shape = problem_.shape;
  const int width = part.width();
  float* state = room.state.Get(int64_t{shape.state} * width);
  T* packed = room.packed.Get(PanelElements(width, problem_.plan->tokens()));
  for (int64_t c = part.chunk_begin; c < part.chunk_end; ++c) {
    const ScanChunk& chunk = problem_.plan->chunk(c);
    const ScanEdges edges = EdgesOf(c, part.head, room);
    const bool followed = problem_.plan->followed(c);
    TokenBlock<const T> x = problem_.X(chunk.row, part.head);
    x.data += part.begin;
    const ScanAhead x_ahead = ScanAhead::Of(x, chunk.tokens, width);
    if (chunk.entering > 0) {
      T* out = states_at_ + Index(c, part.head);
      const bool decays = followed && chunk.carries();
      const float decay = edges.enter[chunk.tokens - 1];
      if (backward) {
        kernels_.carry_rows(state, shape.state, width, decays, decay,
                            {out + part.begin, shape.head_dim}, x_ahead);
      } else {
        kernels_.carry_packed(state, shape.state, width, decays, decay,
                              out + part.begin / kPanelLines * PanelGroup(shape.state), x_ahead);
      }
    }
    if (!followed) continue;
    const ScanAhead next = ScanAhead::Of(states_at_ + Index(c + 1, part.head), state_size_);
    kernels_.scale_pack(x, edges.leave_delta, {chunk.last_doc, chunk.tokens}, chunk.tokens, width,
                        packed, next);
    panel_.multiply(TurnedB(c, part.head), packed, shape.state, width, chunk.tokens, state, width,
                    chunk.carries());
  }
}

// G ← exp(s_q) G + Σ_i exp(s_i) C_i dy_iᵀ
template <class T>
void ScanStates<T>::SweepGradients(const Part& part, Room& room) {
  const ScanShape& shape = problem_.shape;
  const int width = part.width();
  float* gradient = room.state.Get(int64_t{shape.state} * width);
  T* packed = room.packed.Get(PanelElements(width, problem_.plan->tokens()));
  for (int64_t c = part.chunk_end - 1; c >= part.chunk_begin; --c) {
    const ScanChunk& chunk = problem_.plan->chunk(c);
    const ScanEdges edges = EdgesOf(c, part.head, room);
    const bool followed = problem_.plan->followed(c), decays = followed && chunk.carries();
    const float decay = edges.enter[chunk.tokens - 1];
    const int64_t at = Index(c, part.head) + part.begin;
    TokenBlock<const T> dy = problem_.Dy(chunk.row, part.head);
    dy.data += part.begin;
    double carried = 0;
    if (decays) {
      carried =
          decay * kernels_.dot(gradient, {states_at_ + at, shape.head_dim}, shape.state, width);
    }
    carried_at_[((c - chunk_begin_) * shape.heads + part.head) * parts_ + part.index] = carried;
    if (followed) {
      kernels_.carry_rows(gradient, shape.state, width, decays, decay,
                          {gradients_at_ + at, shape.head_dim},
                          ScanAhead::Of(dy, chunk.entering, width));
    }
    if (chunk.entering == 0) continue;
    const ScanAhead next = ScanAhead::Of(gradients_at_ + Index(c - 1, part.head), state_size_);
    kernels_.scale_pack(dy, edges.enter, {0, chunk.entering}, chunk.tokens, width, packed, next);
    panel_.multiply(TurnedC(c, part.head), packed, shape.state, width, chunk.tokens, gradient,
                    width, decays);
  }
}

template class ScanStates<float>;
template class ScanStates<uint16_t>;

}  // namespace nibble::cpu
