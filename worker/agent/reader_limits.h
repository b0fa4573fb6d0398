// Bounds on the readers of a service of the peer server (stream_readers.h).
//
// Ownership: values. Thread-safety: `now_ms` is called from any thread.
#ifndef NIBBLE_WORKER_AGENT_READER_LIMITS_H_
#define NIBBLE_WORKER_AGENT_READER_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <functional>

namespace nibble {

struct ReaderLimits {
  size_t most = 64;            // at once
  int64_t stall_ms = 120'000;  // a reader must take a message that waits for it within this time
  int64_t look_ms = 1000;      // between two looks at the readers
  std::function<int64_t()> now_ms = nullptr;  // monotonic; null: the steady clock
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_READER_LIMITS_H_
