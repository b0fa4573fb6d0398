#include "kernels/cpu/layers/attention_forward.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/layers/attention_strip.h"

namespace nibble::cpu {
namespace {

template <class T>
class Forward {
 public:
  Forward(const AttentionForward& request, const AttentionEngine<T>& engine)
      : plan_{request.shape, request.layout}, request_(request), strip_(request.shape, engine) {}

  void Run(ThreadPool& pool, Scratch<char>& scratch) {
    // If it leaves no thread idle for long, a task per pair, whose packed keys then stay in the
    // processor's cache; otherwise everything is packed first and a task is a few strips.
    const int64_t threads = pool.threads(), pairs = plan_.pairs();
    const bool by_pair = pairs % threads == 0 || pairs >= 8 * threads;
    const int64_t slots = by_pair ? threads : pairs;
    std::vector<KeyPanels<T>> panels;
    std::vector<StripMemory<T>> workers;
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
        // Longest first.
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
  void Carve(Carver& carver, int64_t slots, int64_t threads, std::vector<KeyPanels<T>>& panels,
             std::vector<StripMemory<T>>& workers) const {
    panels.resize(slots);
    for (KeyPanels<T>& p : panels) p = strip_.TakePanels(carver, plan_.blocks());
    workers.resize(threads);
    for (StripMemory<T>& w : workers) w = strip_.TakeMemory(carver);
  }

  const T* At(int64_t sequence, int64_t t, int64_t col) const {
    return static_cast<const T*>(request_.qkv.data) + plan_.row(sequence, t) * request_.qkv.stride +
           col;
  }

  void Pack(int64_t pair, int64_t block, const KeyPanels<T>& panels) const {
    const int64_t sequence = plan_.sequence(pair);
    const int kv_head = plan_.kv_head(pair);
    strip_.Pack(At(sequence, block * kKeyBlock, plan_.key_col(kv_head)),
                At(sequence, block * kKeyBlock, plan_.value_col(kv_head)), request_.qkv.stride,
                plan_.block_keys(block), block, panels);
  }

  void Strip(int64_t pair, int64_t strip, const KeyPanels<T>& panels, const StripMemory<T>& w,
             float& amax) const {
    const int64_t sequence = plan_.sequence(pair);
    const KeyRange keys = plan_.StripKeys(sequence, strip);
    const int rows = plan_.strip_rows(strip);
    for (int member = 0; member < plan_.group(); ++member) {
      const int head = plan_.head(pair, member);
      strip_.Begin(At(sequence, strip * kStrip, plan_.query_col(head)), request_.qkv.stride, rows,
                   w);
      const int64_t first_block = keys.first / kKeyBlock;
      for (int64_t block = first_block; block * kKeyBlock < keys.end; ++block) {
        strip_.Add(plan_.MaskOf(sequence, strip, block), plan_.block_keys(block),
                   block == first_block, panels, w);
      }
      const int64_t row = plan_.row(sequence, strip * kStrip);
      strip_.Finish(
          rows, w,
          static_cast<T*>(request_.out.data) + row * request_.out.stride + plan_.query_col(head),
          request_.out.stride, request_.lse + head * plan_.layout.tokens() + row, amax);
    }
  }

  const AttentionPlan plan_;
  const AttentionForward& request_;
  const AttentionStrip<T> strip_;
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
