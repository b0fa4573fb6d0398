#include "kernels/cpu/layers/scan_backward_chunk.h"

#include <algorithm>
#include <cstring>

#include "kernels/formats/bfloat16.h"
#include "model/limits.h"

namespace nibble::cpu {
namespace {

void Set(float& to, float value) { to = value; }
void Set(uint16_t& to, float value) { to = EncodeBf16(value); }

// Results of RunHead per token, [padded] each.
struct TokenSums {
  const float* x_du;     // x_k·du_k
  const float* inside;   // Σ_{i≥k>j} W_ij
  const float* entered;  // e
  const float* left;     // f
};

// da_k = Σ_{i≥k>j} W_ij + Σ_{i≥k} e_i + Σ_{j<k} f_j + exp(s_q)⟨G, S⟩;
// dΔ_k = x_k·du_k + A da_k; d(raw dt) = dΔ σ. Adds to `sums`.
template <class T>
void TokenGradients(const TokenSums& of, const ScanDecay& decay, int tokens, double rate,
                    double carried, TokenBlock<T> ddt, ScanHeadSums& sums) {
  double entered_after[kMaxScanChunk];
  double sum = 0;
  for (int k = tokens - 1; k >= 0; --k) entered_after[k] = sum += of.entered[k];
  double left_before = 0;
  for (int k = 0; k < tokens; ++k) {
    const double da = of.inside[k] + entered_after[k] + left_before + carried;
    left_before += of.left[k];
    const double draw = (of.x_du[k] + rate * da) * decay.slope[k];
    sums.da_delta += da * decay.delta[k];
    sums.ddt += draw;
    Set(ddt.data[k * ddt.stride], static_cast<float>(draw));
  }
}

}  // namespace

template <class T>
void ScanBackwardChunk<T>::Run(const ScanProblem<T>& problem, const ScanStates<T>& states,
                               const ScanTask& task, const ScanGradients<T>& out, float* db,
                               float* dc) {
  const ScanPlan& plan = *problem.plan;
  const ScanChunk& chunk = plan.chunk(task.chunk);
  const int tokens = chunk.tokens, most = plan.tokens(), state = problem.shape.state;
  const int64_t padded = plan.padded();
  const TokenBlock<const T> b = problem.B(chunk.row, task.group);
  const TokenBlock<const T> c = problem.C(chunk.row, task.group);

  T* b_left = b_left_.Get(PanelElements(most, state));
  T* c_right = c_right_.Get(PanelElements(most, state));
  panel_.pack_a({b.data, b.stride}, tokens, state, b_left);
  panel_.pack_b({c.data, c.stride, true}, state, tokens, c_right);
  float* scores = scores_.Get(padded * padded);
  for (int j = 0; j < tokens; j += kScanStrip) {
    panel_.multiply(b_left + PanelLine(j, state), c_right + PanelLine(j, state),
                    std::min(kScanStrip, tokens - j), tokens - j, state, scores + j * padded + j,
                    padded, false);
  }
  float* pair_sums = pair_sums_.Get(padded * padded);
  std::memset(pair_sums, 0, padded * padded * sizeof(float));
  std::memset(db, 0, int64_t{tokens} * state * sizeof(float));
  std::memset(dc, 0, int64_t{tokens} * state * sizeof(float));

  const Shared shared = {problem, states, task,   chunk,  plan.followed(task.chunk),
                         b,       c,      b_left, scores, pair_sums};
  for (int64_t head = task.head_begin; head < task.head_end; ++head) {
    RunHead(shared, head, out, db, dc);
  }
  AddPairs(shared, db, dc);
}

template <class T>
typename ScanBackwardChunk<T>::HeadPanels ScanBackwardChunk<T>::PackHead(const Shared& shared,
                                                                         int64_t head) {
  const ScanProblem<T>& problem = shared.problem;
  const ScanChunk& chunk = shared.chunk;
  const int tokens = chunk.tokens, most = problem.plan->tokens();
  const int head_dim = problem.shape.head_dim, state = problem.shape.state;
  const int64_t by_token = PanelElements(most, head_dim), by_dim = PanelElements(head_dim, most);
  const int64_t turned_state = PanelElements(state, head_dim);
  const int64_t plain_state = PanelElements(head_dim, state);
  T* at = head_.Get(3 * by_token + by_dim + 2 * turned_state + plain_state);
  const auto take = [&](int64_t elements) { return (at += elements) - elements; };
  const HeadPanels panels = {take(by_token),    take(by_token),     take(by_dim),
                             take(by_token),    take(turned_state), take(plain_state),
                             take(turned_state)};

  const TokenBlock<const T> x = problem.X(chunk.row, head), dy = problem.Dy(chunk.row, head);
  panel_.pack_a({x.data, x.stride}, tokens, head_dim, panels.x_left);
  panel_.pack_b({dy.data, dy.stride}, tokens, head_dim, panels.dy_right);
  panel_.pack_b({dy.data, dy.stride, true}, head_dim, tokens, panels.turned_dy_right);
  if (chunk.entering > 0) {
    const T* s = shared.states.state(shared.task.chunk, head);
    panel_.pack_a({dy.data, dy.stride}, chunk.entering, head_dim, panels.dy_left);
    panel_.pack_b({s, head_dim, true}, head_dim, state, panels.turned_s_right);
  }
  if (shared.followed) {
    const T* g = shared.states.gradient(shared.task.chunk, head);
    panel_.pack_b({g, head_dim}, state, head_dim, panels.g_right);
    panel_.pack_b({g, head_dim, true}, head_dim, state, panels.turned_g_right);
  }
  return panels;
}

// du_j = Σ_{i≥j} M_ij (C_i·B_j) dy_i + exp(s_q − s_j) G B_j; dx_j = Δ_j du_j + D dy_j;
// dC_i += exp(s_i) Sᵀ dy_i; dB_j += exp(s_q − s_j) Gᵀ u_j.
template <class T>
void ScanBackwardChunk<T>::RunHead(const Shared& shared, int64_t head, const ScanGradients<T>& out,
                                   float* db, float* dc) {
  const ScanProblem<T>& problem = shared.problem;
  const ScanPlan& plan = *problem.plan;
  const ScanChunk& chunk = shared.chunk;
  const int64_t at = shared.task.chunk, padded = plan.padded();
  const int tokens = chunk.tokens, most = plan.tokens();
  const int head_dim = problem.shape.head_dim, state = problem.shape.state;

  float* arrays = arrays_.Get((ScanEdges::kArrays + 5) * padded);
  const ScanEdges edges = ScanEdges::At(arrays + 5 * padded, padded);
  float *x_du = arrays, *inside_sums = arrays + padded, *entered = arrays + 2 * padded;
  float *left = arrays + 3 * padded, *columns = arrays + 4 * padded;
  std::memset(columns, 0, padded * sizeof(float));
  const ScanDecay decay = shared.states.decay(at, head);
  kernels_.edges(decay, tokens, padded, chunk.entering, chunk.last_doc, edges);
  const ScanMix mix = {tokens, decay, edges, plan.first(at), plan.end(at)};

  const HeadPanels panels = PackHead(shared, head);
  float* products = products_.Get(kScanStrip * padded);
  T* mixed = mixed_.Get(PanelElements(kScanStrip, most));
  float* inside = inside_.Get(kScanStrip * head_dim);
  float* from_state = from_state_.Get(kScanStrip * std::max(head_dim, state));
  ScanHeadSums& sums = out.sums[at * problem.shape.heads + head];
  sums = {};
  // Strips of tokens: as j for dx and dB, as i for dC.
  for (int j = 0; j < tokens; j += kScanStrip) {
    const int rows = std::min(kScanStrip, tokens - j);
    const TokenBlock<T> dx = ScanProblem<T>::At(out.dxbc, chunk.row + j, problem.XCol(head));
    panel_.multiply(panels.x_left + PanelLine(j, head_dim),
                    panels.turned_dy_right + PanelLine(j, head_dim), rows, tokens - j, head_dim,
                    products + j, padded, false);
    kernels_.mix_backward(mix, j, shared.scores + j * padded, products, padded, mixed,
                          shared.pair_sums + j * padded, inside_sums, columns,
                          ScanAhead::Of(dx, rows, head_dim));
    for (int r = 0; r < rows; ++r) sums.dd += products[r * padded + j + r];  // x_j·dy_j
    panel_.multiply_slices(mixed + PanelSlice(j), tokens, panels.dy_right + PanelSlice(j), tokens,
                           rows, head_dim, tokens - j, inside, head_dim, false);
    const int leaving = shared.followed ? std::clamp(chunk.last_doc - j, 0, rows) : rows;
    if (leaving < rows) {
      panel_.multiply(shared.b_left + PanelLine(j, state), panels.g_right, rows, head_dim, state,
                      from_state, head_dim, false);
    }
    kernels_.finish_dx(rows, leaving, head_dim, inside, from_state, edges.leave + j,
                       decay.delta + j, problem.d[head], problem.X(chunk.row + j, head),
                       problem.Dy(chunk.row + j, head), dx, x_du + j, left + j);
    const int entering = std::clamp(chunk.entering - j, 0, rows);
    if (entering > 0) {
      panel_.multiply(panels.dy_left + PanelLine(j, head_dim), panels.turned_s_right, entering,
                      state, head_dim, from_state, state, false);
    }
    kernels_.finish_dc(rows, entering, state, from_state, edges.enter + j,
                       problem.C(chunk.row + j, shared.task.group), dc + int64_t{j} * state,
                       entered + j);
  }
  if (shared.followed) {
    T* rows = rows_.Get(int64_t{most} * head_dim);
    T* scaled_left = panels.x_left;  // x_left is no longer needed
    kernels_.scale_rows(problem.X(chunk.row, head), edges.leave_delta, chunk.last_doc, tokens,
                        head_dim, rows);
    panel_.pack_a({rows, head_dim}, tokens, head_dim, scaled_left);
    panel_.multiply(scaled_left, panels.turned_g_right, tokens, state, head_dim, db, state, true);
  }
  TokenGradients({x_du, inside_sums, entered, left}, decay, tokens, problem.rate[head],
                 shared.states.carried(at, head), ScanProblem<T>::At(out.ddt, chunk.row, head),
                 sums);
}

// dB_j += Σ_{i≥j} K_ji C_i; dC_i += Σ_{j≤i} K_ji B_j with K the sums of pairs.
template <class T>
void ScanBackwardChunk<T>::AddPairs(const Shared& shared, float* db, float* dc) {
  const int tokens = shared.chunk.tokens, state = shared.problem.shape.state;
  const int most = shared.problem.plan->tokens(), padded = shared.problem.plan->padded();
  T* pairs = rows_.Get(int64_t{most} * std::max(padded, shared.problem.shape.head_dim));
  kernels_.round_rows(shared.pair_sums, tokens, padded, {pairs, padded});
  T* left = mixed_.Get(PanelElements(most, most));
  T* right = c_right_.Get(std::max(PanelElements(most, state), PanelElements(state, most)));
  panel_.pack_a({pairs, padded}, tokens, tokens, left);
  panel_.pack_b({shared.c.data, shared.c.stride}, tokens, state, right);
  for (int j = 0; j < tokens; j += kScanStrip) {
    panel_.multiply_slices(left + PanelLine(j, tokens) + PanelSlice(j), tokens,
                           right + PanelSlice(j), tokens, std::min(kScanStrip, tokens - j), state,
                           tokens - j, db + int64_t{j} * state, state, true);
  }
  panel_.pack_a({pairs, padded, true}, tokens, tokens, left);
  panel_.pack_b({shared.b.data, shared.b.stride}, tokens, state, right);
  for (int i = 0; i < tokens; i += kScanStrip) {
    const int rows = std::min(kScanStrip, tokens - i);
    panel_.multiply_slices(left + PanelLine(i, tokens), tokens, right, tokens, rows, state,
                           i + rows, dc + int64_t{i} * state, state, true);
  }
}

template class ScanBackwardChunk<float>;
template class ScanBackwardChunk<uint16_t>;

}  // namespace nibble::cpu
