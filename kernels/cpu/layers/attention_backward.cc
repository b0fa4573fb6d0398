#include "kernels/cpu/layers/attention_backward.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/cpu/layers/panel_layout.h"

namespace nibble::cpu {
namespace {

constexpr int kStripsOfBlock = kQueryBlock / kStrip;
// Spans are whole blocks of queries and of keys.
constexpr int64_t kShortestSpan = std::max(kQueryBlock, kKeyBlock);
static_assert(kShortestSpan % kQueryBlock == 0 && kShortestSpan % kKeyBlock == 0);

// Packed keys and values of one pair, and its gradients so far.
template <class T>
struct PairState {
  T* k_scores;  // b of q·kᵀ
  T* v_scores;  // b of dout·vᵀ
  T* k_rows;    // b of ds·k
  float* dk;    // [blocks, padded_dim, kKeyBlock]
  float* dv;    // [blocks, padded_dim, kKeyBlock]
  float* dq;    // [group, strips · kStrip, padded_dim]
};

// Working memory of one thread: a block of queries of one head, and its scores with a block of
// keys.
template <class T>
struct Worker {
  T* q;             // packed a: [kQueryBlock, head_dim]
  T* dout;          // the same
  T* q_columns;     // packed a: [head_dim, queries]
  T* dout_columns;  // the same
  float* dot;       // [kQueryBlock]
  float* lse2;      // [kQueryBlock]
  float* s;         // [kStrip, kKeyBlock]
  float* dp;        // [kStrip, kKeyBlock]
  T* p_b;           // packed b: kKeyBlock lines of depth kQueryBlock
  T* ds_b;          // the same
  T* ds_a;          // packed a: [kQueryBlock, kKeyBlock]
  T* ds_rows;       // FP32: [kStrip, kKeyBlock]
};

template <class T>
class Backward {
 public:
  Backward(const AttentionBackward& request, const AttentionEngine<T>& engine)
      : plan_{request.shape, request.layout}, request_(request), engine_(engine) {
    // Long spans reuse packed queries; short ones make tasks for more threads.
    constexpr int64_t kEnoughTasks = 16;
    while (span_ > kShortestSpan && plan_.pairs() * spans() < kEnoughTasks) span_ /= 2;
  }

  void Run(ThreadPool& pool, Scratch<char>& scratch) {
    // If a pair is one task, its state is needed only during the task.
    const bool by_pair = spans() == 1;
    const int64_t threads = pool.threads(), pairs = plan_.pairs();
    const int64_t slots = by_pair ? threads : pairs;
    std::vector<PairState<T>> states;
    std::vector<Worker<T>> workers;
    Carver measure(nullptr);
    Carve(measure, slots, threads, states, workers);
    Carver carver(scratch.Get(measure.used()));
    Carve(carver, slots, threads, states, workers);

    if (!by_pair) {
      const int64_t blocks = plan_.blocks();
      pool.ParallelFor(pairs * blocks,
                       [&](int64_t i, int) { Pack(i / blocks, i % blocks, states[i / blocks]); });
    }
    for (int64_t step = 0; step < spans(); ++step) {
      const int64_t tasks = spans() - step;
      pool.ParallelFor(pairs * tasks, [&](int64_t i, int thread) {
        const PanelThreadScope scope;
        const int64_t pair = i / tasks, key_span = i % tasks;
        const PairState<T>& state = states[by_pair ? thread : pair];
        if (by_pair) {
          for (int64_t block = 0; block < plan_.blocks(); ++block) Pack(pair, block, state);
        }
        Task(pair, key_span + step, key_span, state, workers[thread]);
      });
    }
  }

 private:
  struct Blocks {
    int64_t begin, end;
  };

  int64_t spans() const { return (plan_.layout.length + span_ - 1) / span_; }
  // Blocks of `size` tokens in a span.
  Blocks BlocksOf(int64_t span, int64_t size) const {
    const int64_t end = std::min(plan_.layout.length, (span + 1) * span_);
    return {span * span_ / size, (end + size - 1) / size};
  }
  int dim() const { return plan_.shape.head_dim; }
  int padded_dim() const { return static_cast<int>(plan_.padded_dim()); }
  int64_t scores_block() const { return PanelElements(kKeyBlock, dim()); }
  int64_t rows_block() const { return PanelElements(dim(), kKeyBlock); }
  int64_t sum_block() const { return plan_.padded_dim() * kKeyBlock; }
  int64_t dq_member() const { return plan_.strips() * kStrip * plan_.padded_dim(); }

  void Carve(Carver& carver, int64_t slots, int64_t threads, std::vector<PairState<T>>& states,
             std::vector<Worker<T>>& workers) const {
    const int64_t blocks = plan_.blocks();
    states.resize(slots);
    for (PairState<T>& s : states) {
      s.k_scores = carver.Take<T>(blocks * scores_block());
      s.v_scores = carver.Take<T>(blocks * scores_block());
      s.k_rows = carver.Take<T>(blocks * rows_block());
      s.dk = carver.Take<float>(blocks * sum_block());
      s.dv = carver.Take<float>(blocks * sum_block());
      s.dq = carver.Take<float>(plan_.group() * dq_member());
    }
    workers.resize(threads);
    for (Worker<T>& w : workers) {
      w.q = carver.Take<T>(PanelElements(kQueryBlock, dim()));
      w.dout = carver.Take<T>(PanelElements(kQueryBlock, dim()));
      w.q_columns = carver.Take<T>(PanelElements(dim(), kQueryBlock));
      w.dout_columns = carver.Take<T>(PanelElements(dim(), kQueryBlock));
      w.dot = carver.Take<float>(kQueryBlock);
      w.lse2 = carver.Take<float>(kQueryBlock);
      w.s = carver.Take<float>(kStrip * kKeyBlock);
      w.dp = carver.Take<float>(kStrip * kKeyBlock);
      w.p_b = carver.Take<T>(PanelElements(kKeyBlock, kQueryBlock));
      w.ds_b = carver.Take<T>(PanelElements(kKeyBlock, kQueryBlock));
      w.ds_a = carver.Take<T>(PanelElements(kQueryBlock, kKeyBlock));
      w.ds_rows = sizeof(T) == 2 ? nullptr : carver.Take<T>(kStrip * kKeyBlock);
    }
  }

  const T* Qkv(int64_t row, int64_t col) const {
    return static_cast<const T*>(request_.qkv.data) + row * request_.qkv.stride + col;
  }

  void Pack(int64_t pair, int64_t block, const PairState<T>& state) const {
    const int kv_head = plan_.kv_head(pair), keys = plan_.block_keys(block);
    const int64_t row = plan_.row(plan_.sequence(pair), block * kKeyBlock);
    const int64_t stride = request_.qkv.stride;
    const T* k = Qkv(row, plan_.key_col(kv_head));
    const T* v = Qkv(row, plan_.value_col(kv_head));
    const PanelGemm<T>& gemm = engine_.gemm;
    gemm.pack_b({k, stride, true}, dim(), keys, state.k_scores + block * scores_block());
    gemm.pack_b({v, stride, true}, dim(), keys, state.v_scores + block * scores_block());
    gemm.pack_b({k, stride}, keys, dim(), state.k_rows + block * rows_block());
  }

  // One span of queries of every head of the pair against one span of keys.
  void Task(int64_t pair, int64_t query_span, int64_t key_span, const PairState<T>& state,
            const Worker<T>& w) const {
    const int64_t sequence = plan_.sequence(pair);
    const Blocks queries = BlocksOf(query_span, kQueryBlock);
    const Blocks keys = BlocksOf(key_span, kKeyBlock);
    const int64_t dq_begin = queries.begin * kQueryBlock * plan_.padded_dim();
    const int64_t dq_end = std::min(dq_member(), queries.end * kQueryBlock * plan_.padded_dim());
    if (query_span == key_span) {
      std::fill(state.dk + keys.begin * sum_block(), state.dk + keys.end * sum_block(), 0.0f);
      std::fill(state.dv + keys.begin * sum_block(), state.dv + keys.end * sum_block(), 0.0f);
      for (int member = 0; member < plan_.group(); ++member) {
        float* dq = state.dq + member * dq_member();
        std::fill(dq + dq_begin, dq + dq_end, 0.0f);
      }
    }
    for (int member = 0; member < plan_.group(); ++member) {
      for (int64_t i = queries.begin; i < queries.end; ++i) {
        const KeyRange seen = plan_.StripKeys(sequence, i * kStripsOfBlock);
        const int64_t first = std::max(keys.begin, seen.first / kKeyBlock);
        const int64_t last_query = i * kQueryBlock + block_queries(i) - 1;
        const int64_t end = std::min(keys.end, last_query / kKeyBlock + 1);
        if (first >= end) continue;
        PackQueries(pair, member, i, w);
        for (int64_t j = first; j < end; ++j) {
          BlockPair(sequence, i, j, state, state.dq + member * dq_member(), w);
        }
      }
    }
    if (query_span == spans() - 1) StoreKeys(pair, keys, state);
    if (key_span == 0) StoreQueries(pair, queries, state);
  }

  int block_queries(int64_t block) const {
    return static_cast<int>(
        std::min<int64_t>(kQueryBlock, plan_.layout.length - block * kQueryBlock));
  }

  void PackQueries(int64_t pair, int member, int64_t block, const Worker<T>& w) const {
    const int head = plan_.head(pair, member), queries = block_queries(block);
    const int64_t row = plan_.row(plan_.sequence(pair), block * kQueryBlock);
    const int64_t col = plan_.query_col(head);
    const T* q = Qkv(row, col);
    const int64_t dout_stride = request_.dout.stride, out_stride = request_.out.stride;
    const T* dout = static_cast<const T*>(request_.dout.data) + row * dout_stride + col;
    const T* out = static_cast<const T*>(request_.out.data) + row * out_stride + col;
    const PanelGemm<T>& gemm = engine_.gemm;
    gemm.pack_a({q, request_.qkv.stride}, queries, dim(), w.q);
    gemm.pack_a({dout, dout_stride}, queries, dim(), w.dout);
    gemm.pack_a({q, request_.qkv.stride, true}, dim(), queries, w.q_columns);
    gemm.pack_a({dout, dout_stride, true}, dim(), queries, w.dout_columns);
    engine_.kernels.dots({.rows = queries,
                          .cols = dim(),
                          .out = out,
                          .out_stride = out_stride,
                          .dout = dout,
                          .dout_stride = dout_stride,
                          .lse = request_.lse + head * plan_.layout.tokens() + row,
                          .dot = w.dot,
                          .lse2 = w.lse2});
  }

  // Query block i against key block j: dv += pᵀ dout, dk += dsᵀ q, dq += ds k.
  void BlockPair(int64_t sequence, int64_t i, int64_t j, const PairState<T>& state, float* dq,
                 const Worker<T>& w) const {
    std::array<StripMask, kStripsOfBlock> masks;
    int strips = 0;
    for (; strips < kStripsOfBlock && strips * kStrip < block_queries(i); ++strips) {
      masks[strips] = plan_.MaskOf(sequence, i * kStripsOfBlock + strips, j);
      if (masks[strips].from < masks[strips].to) Scores(strips, masks[strips], j, state, w);
    }
    AddKeyGradients(masks.data(), strips, i, j, state, w);
    AddQueryGradients(masks.data(), strips, i, j, state, dq, w);
  }

  // p and ds of one strip.
  void Scores(int strip, const StripMask& mask, int64_t j, const PairState<T>& state,
              const Worker<T>& w) const {
    const int rows = static_cast<int>(RoundUp(mask.rows, kPanelLines));
    const int cols = std::min<int>(mask.to, RoundUp(plan_.block_keys(j), kPanelLines)) - mask.from;
    const int64_t queries = strip * (kStrip / kPanelLines) * PanelGroup(dim());
    const int64_t keys = j * scores_block() + mask.from / kPanelLines * PanelGroup(dim());
    engine_.gemm.multiply(w.q + queries, state.k_scores + keys, rows, cols, dim(), w.s + mask.from,
                          kKeyBlock, false);
    engine_.gemm.multiply(w.dout + queries, state.v_scores + keys, rows, cols, dim(),
                          w.dp + mask.from, kKeyBlock, false);
    const int64_t depth = strip * kStrip * kPanelLines;
    T* ds_a = w.ds_a + strip * (kStrip / kPanelLines) * PanelGroup(kKeyBlock);
    engine_.kernels.backward({.mask = mask,
                              .factor = plan_.factor(),
                              .s = w.s,
                              .dp = w.dp,
                              .lse2 = w.lse2 + strip * kStrip,
                              .dot = w.dot + strip * kStrip,
                              .p_b = w.p_b + depth,
                              .ds_b = w.ds_b + depth,
                              .ds_a = sizeof(T) == 2 ? ds_a : w.ds_rows});
    if constexpr (sizeof(T) == 4) {
      engine_.gemm.pack_a({w.ds_rows, kKeyBlock}, kStrip, kKeyBlock, ds_a);
    }
  }

  // Runs of columns that the same strips attend to: both ends of a strip's columns never decrease.
  void AddKeyGradients(const StripMask* masks, int strips, int64_t i, int64_t j,
                       const PairState<T>& state, const Worker<T>& w) const {
    const auto strips_of = [&](int col) {
      int begin = 0;
      while (begin < strips && masks[begin].to <= col) ++begin;
      int end = begin;
      while (end < strips && masks[end].from <= col) ++end;
      return std::array{begin, end};
    };
    const int keys = static_cast<int>(RoundUp(plan_.block_keys(j), kPanelLines));
    const int queries = block_queries(i);
    for (int col = 0; col < keys;) {
      const auto [begin, end] = strips_of(col);
      int next = col + kPanelDepth;
      while (next < keys && strips_of(next) == std::array{begin, end}) next += kPanelDepth;
      if (begin < end) {
        const int cols = std::min(next, keys) - col;
        const int depth = std::min(end * kStrip, queries) - begin * kStrip;
        const int64_t a = begin * kStrip * kPanelLines;
        const int64_t b = a + col / kPanelLines * PanelGroup(kQueryBlock);
        const int64_t c = j * sum_block() + col;
        engine_.gemm.multiply_slices(w.dout_columns + a, queries, w.p_b + b, kQueryBlock,
                                     padded_dim(), cols, depth, state.dv + c, kKeyBlock, true);
        engine_.gemm.multiply_slices(w.q_columns + a, queries, w.ds_b + b, kQueryBlock,
                                     padded_dim(), cols, depth, state.dk + c, kKeyBlock, true);
      }
      col = next;
    }
  }

  // Runs of strips that attend to the same columns.
  void AddQueryGradients(const StripMask* masks, int strips, int64_t i, int64_t j,
                         const PairState<T>& state, float* dq, const Worker<T>& w) const {
    const int keys = plan_.block_keys(j);
    for (int strip = 0; strip < strips;) {
      const int from = masks[strip].from, to = masks[strip].to;
      int next = strip + 1;
      while (next < strips && masks[next].from == from && masks[next].to == to) ++next;
      if (from < to) {
        const int rows =
            std::min<int>(next * kStrip, RoundUp(block_queries(i), kPanelLines)) - strip * kStrip;
        const int64_t a =
            strip * (kStrip / kPanelLines) * PanelGroup(kKeyBlock) + from * kPanelLines;
        engine_.gemm.multiply_slices(
            w.ds_a + a, kKeyBlock, state.k_rows + j * rows_block() + from * kPanelLines, keys, rows,
            padded_dim(), std::min(to, keys) - from,
            dq + (i * kQueryBlock + strip * kStrip) * plan_.padded_dim(), padded_dim(), true);
      }
      strip = next;
    }
  }

  void StoreKeys(int64_t pair, const Blocks& keys, const PairState<T>& state) const {
    const int kv_head = plan_.kv_head(pair);
    for (int64_t block = keys.begin; block < keys.end; ++block) {
      const int64_t row = plan_.row(plan_.sequence(pair), block * kKeyBlock);
      Store(row, plan_.block_keys(block), state.dk + block * sum_block(), kKeyBlock, true,
            plan_.shape.scale, plan_.key_col(kv_head));
      Store(row, plan_.block_keys(block), state.dv + block * sum_block(), kKeyBlock, true, 1.0f,
            plan_.value_col(kv_head));
    }
  }

  void StoreQueries(int64_t pair, const Blocks& queries, const PairState<T>& state) const {
    const int64_t first = queries.begin * kQueryBlock;
    const int64_t end = std::min(plan_.layout.length, queries.end * kQueryBlock);
    for (int member = 0; member < plan_.group(); ++member) {
      Store(plan_.row(plan_.sequence(pair), first), end - first,
            state.dq + member * dq_member() + first * plan_.padded_dim(), padded_dim(), false,
            plan_.shape.scale, plan_.query_col(plan_.head(pair, member)));
    }
  }

  void Store(int64_t row, int64_t rows, const float* from, int64_t from_stride, bool transposed,
             float factor, int64_t col) const {
    engine_.kernels.store(
        {.rows = rows,
         .cols = dim(),
         .from = from,
         .from_stride = from_stride,
         .transposed = transposed,
         .factor = factor,
         .to = static_cast<T*>(request_.dqkv.data) + row * request_.dqkv.stride + col,
         .to_stride = request_.dqkv.stride});
  }

  const AttentionPlan plan_;
  const AttentionBackward& request_;
  const AttentionEngine<T>& engine_;
  int64_t span_ = 512;  // tokens
};

}  // namespace

template <class T>
void RunAttentionBackward(const AttentionBackward& request, const AttentionEngine<T>& engine,
                          ThreadPool& pool, Scratch<char>& scratch) {
  Backward<T>(request, engine).Run(pool, scratch);
}

template void RunAttentionBackward(const AttentionBackward&, const AttentionEngine<float>&,
                                   ThreadPool&, Scratch<char>&);
template void RunAttentionBackward(const AttentionBackward&, const AttentionEngine<uint16_t>&,
                                   ThreadPool&, Scratch<char>&);

}  // namespace nibble::cpu
