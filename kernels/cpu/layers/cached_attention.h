// Attention's forward pass over key/value caches, by two algorithms:
//
//   few tokens of a sequence    reading the cache dominates: one token at a time, a task per block
//                               of keys (decode_attention_kernels.h)
//   more tokens                 the matrix units: strips of queries over packed blocks of keys, as
//                               for whole sequences (attention_strip.h)
//
// Ownership: borrows. Thread-safety: one call at a time per scratch. Results depend on the shapes
// alone, not on the number of threads.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_CACHED_ATTENTION_H_
#define NIBBLE_KERNELS_CPU_LAYERS_CACHED_ATTENTION_H_

#include "common/thread_pool.h"
#include "kernels/cpu/layers/attention_plan.h"
#include "kernels/cpu/layers/decode_attention_kernels.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/ops/attention_ops.h"

namespace nibble::cpu {

// Appends keys and values to the caches, then attends. `request` is valid, continues sequences, and
// its matrices are of T: float or uint16_t (BF16).
template <class T>
void RunCachedAttention(const AttentionForward& request, const AttentionEngine<T>& engine,
                        const DecodeAttentionKernels<T>& decode, ThreadPool& pool,
                        Scratch<char>& scratch);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_CACHED_ATTENTION_H_
