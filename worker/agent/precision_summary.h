// The summary of a step's precision statistics that a daemon reports to its coordinator. The figures
// of every layer stay on the worker, as metrics.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_AGENT_PRECISION_SUMMARY_H_
#define NIBBLE_WORKER_AGENT_PRECISION_SUMMARY_H_

#include <cstddef>

#include "proto/nibble/v1/metrics.pb.h"
#include "worker/link/link_host.h"

namespace nibble {

// Operands that a summary names.
inline constexpr size_t kWorstOperands = 5;

// `samples`: of one step. Operands that are not quantised count only for their non-finite values.
v1::PrecisionSummary SummaryOf(const LinkHost::Precision& samples);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_PRECISION_SUMMARY_H_
