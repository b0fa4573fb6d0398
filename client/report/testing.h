// For tests: the data of a made-up run.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REPORT_TESTING_H_
#define NIBBLE_CLIENT_REPORT_TESTING_H_

#include <cstdint>

#include "client/report/report_data.h"

namespace nibble::report_testing {

struct MadeRun {
  int64_t steps = 300;
  int blocks = 4;
  int64_t precision_every = 50;
  bool compared = true;
};

// A run in NVFP4 that switches its forward pass to BF16 at 80 % of its steps, restarts once, and
// skips a step after a spike. Its loss at step s is LossAt(s), and that of the BF16 run, with which
// it is compared, is 1 % lower.
ReportInput MakeRun(const MadeRun& run);
double LossAt(int64_t step, int64_t steps);

}  // namespace nibble::report_testing

#endif  // NIBBLE_CLIENT_REPORT_TESTING_H_
