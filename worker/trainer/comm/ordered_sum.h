// The arithmetic of the collectives: reductions over ranks in rank order, on the CPU.
//
// Pure. Thread-safety: any thread.
#ifndef NIBBLE_WORKER_TRAINER_COMM_ORDERED_SUM_H_
#define NIBBLE_WORKER_TRAINER_COMM_ORDERED_SUM_H_

#include <cstdint>
#include <span>

#include "worker/trainer/comm/collective.h"

namespace nibble {

// out[i] = ((in[0][i] + in[1][i]) + in[2][i]) + …, each addition rounded to FP32.
// in: [ranks] pointers to [count] f32; out: [count] f32, apart from every input or equal to one.
void SumInRankOrder(std::span<const float* const> in, float* out, int64_t count);

// The same for a small array of any element. in: [ranks, count], out: [count], apart.
void ReduceInRankOrder(const void* in, void* out, int ranks, int64_t count, ReduceElement element,
                       Reduction reduction);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_ORDERED_SUM_H_
