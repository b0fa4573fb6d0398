// Attention's backward pass: probabilities are recomputed from the scores and lse, block by block.
//
// Queries and keys are divided into spans. A task is one span of queries against one span of keys
// of a pair. In each step every span of keys is paired with another span of queries, so that no two
// tasks of a step add to the same gradients, and the shape alone determines the order of every sum.
//
// Ownership: borrows. Thread-safety: one call at a time per scratch.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_BACKWARD_H_
#define NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_BACKWARD_H_

#include "common/thread_pool.h"
#include "kernels/cpu/layers/attention_plan.h"
#include "kernels/cpu/layers/scratch.h"
#include "kernels/ops/attention_ops.h"

namespace nibble::cpu {

// `request` is valid and its matrices are of T: float or uint16_t (BF16).
template <class T>
void RunAttentionBackward(const AttentionBackward& request, const AttentionEngine<T>& engine,
                          ThreadPool& pool, Scratch<char>& scratch);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_BACKWARD_H_
