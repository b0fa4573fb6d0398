// The sequential part of the scan, from chunk to chunk: the exponents of every chunk, the states
// that enter the chunks and, in the backward pass, the gradients of the states that leave them.
//
// Works on a batch of whole sequences at a time, for which it stores [chunks, heads, state,
// head_dim] once (forward) or twice (backward) in the request's type. Sequences, heads and, if
// these are few, parts of head_dim run in parallel; the division depends on the shape alone.
//
// Ownership: borrows the pool and the request's memory, owns its scratch. Thread-safety: one
// request at a time; const methods may run concurrently between calls of the others.
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

  // The number of sequences in a batch, so that its states stay within bounds.
  static int64_t BatchOf(const ScanProblem<T>& problem, bool backward);

  // Computes the states of chunks [chunk_begin, chunk_end), of whole sequences. Then state() is
  // valid for every chunk with tokens that depend on it, packed as a right operand [state,
  // head_dim].
  void Forward(const ScanProblem<T>& problem, int64_t chunk_begin, int64_t chunk_end);
  // As Forward, but state() is row-major; gradient(), row-major too, is valid for every chunk whose
  // state the next one depends on.
  void Backward(const ScanProblem<T>& problem, int64_t chunk_begin, int64_t chunk_end);

  ScanDecay decay(int64_t chunk, int64_t head) const;
  const T* state(int64_t chunk, int64_t head) const { return states_at_ + Index(chunk, head); }
  const T* gradient(int64_t chunk, int64_t head) const {
    return gradients_at_ + Index(chunk, head);
  }
  // exp(s_q) ⟨G, S⟩, zero if the state that leaves the chunk does not depend on S.
  double carried(int64_t chunk, int64_t head) const;

 private:
  // Scratch of one thread.
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
  int64_t state_size_ = 0;   // elements per state
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
