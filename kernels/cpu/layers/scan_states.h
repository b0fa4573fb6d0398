// The part of the scan that goes from chunk to chunk: what dt makes of every chunk, the states that
// enter the chunks, and going back the gradients of those that leave.
//
// Works on a batch of whole sequences at a time, of which it keeps [chunks, heads, state, head_dim]
// once (forward) or twice (backward) in the request's type. Sequences, heads and, where these are
// few, parts of head_dim run in parallel, cut by shape alone.
//
// Ownership: borrows the pool and the request's memory, owns its scratch. Thread-safety: one
// request at a time; between two calls that change it, const methods may run concurrently.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_SCAN_STATES_H_
#define NIBBLE_KERNELS_CPU_LAYERS_SCAN_STATES_H_

#include <cstdint>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/cpu/layers/scan_kernels.h"
#include "kernels/cpu/layers/scan_problem.h"
#include "kernels/cpu/layers/scratch.h"

namespace nibble::cpu {

template <class T>
class ScanStates {
 public:
  ScanStates(ThreadPool& pool, const ScanKernels<T>& kernels, const PanelGemm<T>& panel)
      : pool_(pool), kernels_(kernels), panel_(panel), rooms_(pool.threads()) {}

  // How many sequences to a batch, so that its states stay within bounds.
  static int64_t BatchOf(const ScanProblem<T>& problem, bool backward);

  // Chunks [chunk_begin, chunk_end), of whole sequences. Then state(), packed as the right operand
  // [state, head_dim], holds for every chunk with entering tokens.
  void Forward(const ScanProblem<T>& problem, int64_t chunk_begin, int64_t chunk_end);
  // As Forward, but state() is row-major, and gradient(), likewise, holds for every chunk that is
  // followed.
  void Backward(const ScanProblem<T>& problem, int64_t chunk_begin, int64_t chunk_end);

  ScanDecay decay(int64_t chunk, int64_t head) const;
  const T* state(int64_t chunk, int64_t head) const { return states_at_ + Index(chunk, head); }
  const T* gradient(int64_t chunk, int64_t head) const {
    return gradients_at_ + Index(chunk, head);
  }
  // exp(s_q) ⟨G, S⟩, zero where the chunk does not carry S on.
  double carried(int64_t chunk, int64_t head) const;

 private:
  // One thread's.
  struct Room {
    Scratch<float> edges;  // [ScanEdges::kArrays, padded]
    Scratch<float> state;  // [state, part], or its gradient
    Scratch<T> packed;
  };
  // Columns [begin, end) of one head in one sequence.
  struct Part {
    int64_t chunk_begin, chunk_end;
    int64_t head, index;
    int begin, end;
    int width() const { return end - begin; }
  };

  void Start(const ScanProblem<T>& problem, int64_t chunk_begin, int64_t chunk_end, bool backward);
  // Runs `sweep` for every part of the batch.
  template <class Sweep>
  void ForParts(Sweep&& sweep);
  void SweepStates(const Part& part, bool backward, Room& room);
  void SweepGradients(const Part& part, Room& room);
  ScanEdges EdgesOf(int64_t chunk, int64_t head, Room& room) const;
  int64_t Index(int64_t chunk, int64_t head) const {
    return ((chunk - chunk_begin_) * problem_.shape.heads + head) * state_size_;
  }
  const T* TurnedB(int64_t chunk, int64_t head) const;
  const T* TurnedC(int64_t chunk, int64_t head) const;

  ThreadPool& pool_;
  const ScanKernels<T>& kernels_;
  const PanelGemm<T>& panel_;

  ScanProblem<T> problem_;
  int64_t chunk_begin_ = 0, chunk_end_ = 0;
  int part_width_ = 0;
  int64_t parts_ = 0;
  int64_t state_size_ = 0;   // elements from one state to the next
  int64_t turned_size_ = 0;  // elements of Bᵀ or Cᵀ as a packed left operand [state, tokens]
  const float* decays_at_ = nullptr;
  T *states_at_ = nullptr, *gradients_at_ = nullptr;
  T *turned_b_at_ = nullptr, *turned_c_at_ = nullptr;
  double* carried_at_ = nullptr;

  Scratch<float> decays_;           // [chunks, heads, ScanDecay::kArrays, padded]
  Scratch<T> turned_b_, turned_c_;  // [chunks, groups, turned_size_]
  Scratch<T> states_, gradients_;   // [chunks, heads, state_size_]
  Scratch<double> carried_;         // [chunks, heads, parts]
  std::vector<Room> rooms_;
};

extern template class ScanStates<float>;
extern template class ScanStates<uint16_t>;

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_SCAN_STATES_H_
