// What the kernel says of this process.
//
// Thread-safety: pure functions of /proc.
#ifndef NIBBLE_COMMON_METRICS_PROCESS_FIGURES_H_
#define NIBBLE_COMMON_METRICS_PROCESS_FIGURES_H_

#include <cstdint>

namespace nibble {

struct ProcessFigures {
  double cpu_seconds = 0;  // user and system, so far
  double start_unix_seconds = 0;
  int64_t resident_bytes = 0;
  int64_t threads = 0;
  int64_t open_files = 0;
  int64_t most_open_files = 0;
};

// What cannot be read is 0.
ProcessFigures ReadProcessFigures();

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_PROCESS_FIGURES_H_
