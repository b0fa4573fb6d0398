// The limit that memory sets to decoding: how fast as many bytes as a token's weights are copied.
//
// Ownership: borrows the pool. Thread-safety: one measurement at a time, and not while the pool
// runs something else.
#ifndef NIBBLE_WORKER_INFER_MEMORY_SPEED_H_
#define NIBBLE_WORKER_INFER_MEMORY_SPEED_H_

#include <cstdint>

#include "common/thread_pool.h"

namespace nibble {

// Bytes per second, read and written ones together, of the fastest of a few copies on all threads
// that move about `traffic` bytes, at most 2^28: more says no more, and costs memory.
double MeasureCopySpeed(ThreadPool& pool, int64_t traffic);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_MEMORY_SPEED_H_
