// The checks of requests to attention operations on the CPU.
//
// Ownership: borrows. Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_REQUEST_H_
#define NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_REQUEST_H_

#include "absl/status/status.h"
#include "kernels/ops/attention_ops.h"

namespace nibble::cpu {

// InvalidArgument naming the operation, the operand, its value and the bound. Refuses a token whose
// document begins before its sequence, after itself or before the previous token's document.
absl::Status Validate(const Rope& request);
absl::Status Validate(const AttentionForward& request);
absl::Status Validate(const AttentionBackward& request);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_REQUEST_H_
