// The bounds of the numbers in a worker's report, beside those of its texts and lists (limits.h): a
// number that no honest daemon sends is refused before anything computes with it.
//
// A number is from 0 to kMaxCount, and a fraction is finite, unless the table says otherwise: a new
// field is bounded without a line here. Figures of training may be anything, since a run may
// diverge; its durations may not, because plans are made from them.
//
// Thread-safety: immutable tables and pure functions.
#ifndef NIBBLE_SERVER_STATE_REPORT_NUMBERS_H_
#define NIBBLE_SERVER_STATE_REPORT_NUMBERS_H_

#include "absl/status/status.h"
#include "proto/nibble/v1/worker_link.pb.h"

namespace nibble {

// InvalidArgument names the field by its path ("gangs[2].ranks[0].since_step_ms"), its value and
// the bounds.
absl::Status CheckNumbers(const v1::ConnectRequest& report);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_REPORT_NUMBERS_H_
