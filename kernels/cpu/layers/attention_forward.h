// Attention's forward pass: strips of queries against blocks of keys with an online softmax, so
// that the scores are never stored.
//
// A value that is not finite reaches the output of every token that attends to it, and perhaps of
// other tokens of the same sequence, within a block of keys of it.
//
// Ownership: borrows. Thread-safety: one call at a time per scratch.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_FORWARD_H_
#define NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_FORWARD_H_

#include "common/thread_pool.h"
#include "kernels/cpu/layers/attention_plan.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/ops/attention_ops.h"

namespace nibble::cpu {

// `request` is valid and its matrices are of T: float or uint16_t (BF16).
template <class T>
void RunAttentionForward(const AttentionForward& request, const AttentionEngine<T>& engine,
                         ThreadPool& pool, Scratch<char>& scratch);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_FORWARD_H_
