#include "kernels/cpu/layers/attention_forward.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/layers/panel_layout.h"

namespace nibble::cpu {
namespace {

// Keys and values of one pair, packed: k as b of q·kᵀ, v as b of p·v.
template <class T>
struct KeyPanels {
  T* k;
  T* v;
};

// What one thread works in.
template <class T>
struct Worker {
  T* q;        // packed a: [kStrip, head_dim]
  float* s;    // [kStrip, kKeyBlock]
  T* p;        // packed a: [kStrip, kKeyBlock]
  float* o;    // [kStrip, padded_dim]
  float* top;  // [kStrip]
  float* sum;  // [kStrip]
};

template <class T>
class Forward {
 public:
  Forward(const AttentionForward& request, const AttentionEngine<T>& engine)
      : plan_{request.shape, request.layout}, request_(request), engine_(engine) {}

  void Run(ThreadPool& pool, Scratch<char>& scratch) {
    // A task for each pair, which then keeps its packed keys in its cache, where that leaves no
    // thread idle for long; else everything is packed first and tasks are a few strips.
    const int64_t threads = pool.threads(), pairs = plan_.pairs();
    const bool by_pair = pairs % threads == 0 || pairs >= 8 * threads;
    const int64_t slots = by_pair ? threads : pairs;
    std::vector<KeyPanels<T>> panels;
    std::vector<Worker<T>> workers;
    Carver measure(nullptr);
    Carve(measure, slots, threads, panels, workers);
    Carver carver(scratch.Get(measure.used()));
    Carve(carver, slots, threads, panels, workers);
    std::vector<float> amax(threads, 0.0f);

    const int64_t blocks = plan_.blocks(), strips = plan_.strips();
    if (by_pair) {
      pool.ParallelFor(pairs, [&](int64_t pair, int thread) {
        const PanelThreadScope scope;
        for (int64_t block = 0; block < blocks; ++block) Pack(pair, block, panels[thread]);
        for (int64_t strip = 0; strip < strips; ++strip) {
          Strip(pair, strip, panels[thread], workers[thread], amax[thread]);
        }
      });
    } else {
      pool.ParallelFor(pairs * blocks,
                       [&](int64_t i, int) { Pack(i / blocks, i % blocks, panels[i / blocks]); });
      constexpr int64_t kStripsOfTask = 4;
      const int64_t tasks = (strips + kStripsOfTask - 1) / kStripsOfTask;
      pool.ParallelFor(pairs * tasks, [&](int64_t i, int thread) {
        const PanelThreadScope scope;
        const int64_t pair = i / tasks;
        // The longest first.
        const int64_t task = tasks - 1 - i % tasks;
        const int64_t end = std::min(strips, (task + 1) * kStripsOfTask);
        for (int64_t strip = task * kStripsOfTask; strip < end; ++strip) {
          Strip(pair, strip, panels[pair], workers[thread], amax[thread]);
        }
      });
    }
    if (request_.amax != nullptr) *request_.amax = *std::max_element(amax.begin(), amax.end());
  }

 private:
  int64_t k_block() const { return PanelElements(kKeyBlock, plan_.shape.head_dim); }
  int64_t v_block() const { return PanelElements(plan_.shape.head_dim, kKeyBlock); }

  void Carve(Carver& carver, int64_t slots, int64_t threads, std::vector<KeyPanels<T>>& panels,
             std::vector<Worker<T>>& workers) const {
    panels.resize(slots);
    for (KeyPanels<T>& p : panels) {
      p.k = carver.Take<T>(plan_.blocks() * k_block());
      p.v = carver.Take<T>(plan_.blocks() * v_block());
    }
    workers.resize(threads);
    for (Worker<T>& w : workers) {
      w.q = carver.Take<T>(PanelElements(kStrip, plan_.shape.head_dim));
      w.s = carver.Take<float>(kStrip * kKeyBlock);
      w.p = carver.Take<T>(PanelElements(kStrip, kKeyBlock));
      w.o = carver.Take<float>(kStrip * plan_.padded_dim());
      w.top = carver.Take<float>(kStrip);
      w.sum = carver.Take<float>(kStrip);
    }
  }

  const T* At(int64_t sequence, int64_t t, int64_t col) const {
    return static_cast<const T*>(request_.qkv.data) + plan_.row(sequence, t) * request_.qkv.stride +
           col;
  }

  void Pack(int64_t pair, int64_t block, const KeyPanels<T>& panels) const {
    const int64_t sequence = plan_.sequence(pair);
    const int kv_head = plan_.kv_head(pair), keys = plan_.block_keys(block);
    const int dim = plan_.shape.head_dim;
    const T* k = At(sequence, block * kKeyBlock, plan_.key_col(kv_head));
    const T* v = At(sequence, block * kKeyBlock, plan_.value_col(kv_head));
    engine_.gemm.pack_b({k, request_.qkv.stride, true}, dim, keys, panels.k + block * k_block());
    engine_.gemm.pack_b({v, request_.qkv.stride}, keys, dim, panels.v + block * v_block());
  }

  void Strip(int64_t pair, int64_t strip, const KeyPanels<T>& panels, const Worker<T>& w,
             float& amax) const {
    const int64_t sequence = plan_.sequence(pair);
    const KeyRange keys = plan_.StripKeys(sequence, strip);
    for (int member = 0; member < plan_.group(); ++member) {
      const int head = plan_.head(pair, member);
      engine_.gemm.pack_a(
          {At(sequence, strip * kStrip, plan_.query_col(head)), request_.qkv.stride},
          plan_.strip_rows(strip), plan_.shape.head_dim, w.q);
      std::fill_n(w.top, kStrip, kEmptyTop);
      std::fill_n(w.sum, kStrip, 0.0f);
      const int64_t first_block = keys.first / kKeyBlock;
      for (int64_t block = first_block; block * kKeyBlock < keys.end; ++block) {
        Step(plan_.MaskOf(sequence, strip, block), block, block == first_block, panels, w);
      }
      const int64_t row = plan_.row(sequence, strip * kStrip);
      engine_.kernels.finish({.rows = plan_.strip_rows(strip),
                              .cols = plan_.shape.head_dim,
                              .o = w.o,
                              .o_stride = plan_.padded_dim(),
                              .top = w.top,
                              .sum = w.sum,
                              .out = static_cast<T*>(request_.out.data) +
                                     row * request_.out.stride + plan_.query_col(head),
                              .out_stride = request_.out.stride,
                              .lse = request_.lse + head * plan_.layout.tokens() + row,
                              .amax = &amax});
    }
  }

  void Step(const StripMask& mask, int64_t block, bool first, const KeyPanels<T>& panels,
            const Worker<T>& w) const {
    const int dim = plan_.shape.head_dim, padded = static_cast<int>(plan_.padded_dim());
    const int rows = static_cast<int>(RoundUp(mask.rows, kPanelLines));
    const int keys = plan_.block_keys(block);
    // Packed columns end at a multiple of sixteen, packed depth of v where the keys do.
    const int cols = std::min<int>(mask.to, RoundUp(keys, kPanelLines)) - mask.from;
    const int depth = std::min(mask.to, keys) - mask.from;
    const T* k = panels.k + block * k_block() + mask.from / kPanelLines * PanelGroup(dim);
    const T* v = panels.v + block * v_block() + mask.from * kPanelLines;
    engine_.gemm.multiply(w.q, k, rows, cols, dim, w.s + mask.from, kKeyBlock, false);
    engine_.kernels.softmax({.mask = mask,
                             .factor = plan_.factor(),
                             .s = w.s,
                             .p = w.p,
                             .top = w.top,
                             .sum = w.sum,
                             .o = first ? nullptr : w.o,
                             .o_stride = padded});
    if constexpr (sizeof(T) == 2) {
      engine_.gemm.multiply_slices(w.p + mask.from * kPanelLines, kKeyBlock, v, keys, rows, padded,
                                   depth, w.o, padded, !first);
    } else {
      engine_.gemm.pack_a({w.s + mask.from, kKeyBlock}, rows, depth, w.p);
      engine_.gemm.multiply_slices(w.p, depth, v, keys, rows, padded, depth, w.o, padded, !first);
    }
  }

  const AttentionPlan plan_;
  const AttentionForward& request_;
  const AttentionEngine<T>& engine_;
};

}  // namespace

template <class T>
void RunAttentionForward(const AttentionForward& request, const AttentionEngine<T>& engine,
                         ThreadPool& pool, Scratch<char>& scratch) {
  Forward<T>(request, engine).Run(pool, scratch);
}

template void RunAttentionForward(const AttentionForward&, const AttentionEngine<float>&,
                                  ThreadPool&, Scratch<char>&);
template void RunAttentionForward(const AttentionForward&, const AttentionEngine<uint16_t>&,
                                  ThreadPool&, Scratch<char>&);

}  // namespace nibble::cpu
