// Figures of this process, from the kernel.
//
// Thread-safety: all functions; they read /proc.
#ifndef NIBBLE_COMMON_METRICS_PROCESS_FIGURES_H_
#define NIBBLE_COMMON_METRICS_PROCESS_FIGURES_H_

#include <cstdint>

namespace nibble {

struct ProcessFigures {
  double cpu_seconds = 0;  // user and system, since the start
  double start_unix_seconds = 0;
  int64_t resident_bytes = 0;
  int64_t threads = 0;
  int64_t open_files = 0;
  int64_t max_open_files = 0;
};

// Figures that cannot be read are 0.
ProcessFigures ReadProcessFigures();

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_PROCESS_FIGURES_H_
