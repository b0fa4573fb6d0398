// What the tensors and files of a run's stored state are called:
//
//   master/<parameter>       FP32, the parameter's shape
//   adam_m/<parameter>       FP32, first moment
//   adam_v/<parameter>       FP32, second moment
//   trainer/counters         I64 [3]: updates, losses in the spike guard's window, spikes in a row
//   trainer/spike_losses     F64 [window]: oldest first, zeros behind
//   trainer/early_stop       F64 [2], where the spec may stop early: the best validation loss, and
//                            the validations since
//
// Thread-safety: constants.
#ifndef NIBBLE_WORKER_WEIGHTS_STATE_NAMES_H_
#define NIBBLE_WORKER_WEIGHTS_STATE_NAMES_H_

#include <cstdint>

namespace nibble {

inline constexpr char kMasterPrefix[] = "master/";
inline constexpr char kFirstMomentPrefix[] = "adam_m/";
inline constexpr char kSecondMomentPrefix[] = "adam_v/";
inline constexpr char kCounters[] = "trainer/counters";
inline constexpr int64_t kCounterCount = 3;
inline constexpr char kSpikeLosses[] = "trainer/spike_losses";
inline constexpr char kEarlyStop[] = "trainer/early_stop";
inline constexpr int64_t kEarlyStopCount = 2;

// Grows when the same spec gives other bits than before.
inline constexpr int32_t kFormulaVersion = 1;

// In a run's output directory.
inline constexpr char kCheckpointDirectoryName[] = "checkpoints";

}  // namespace nibble

#endif  // NIBBLE_WORKER_WEIGHTS_STATE_NAMES_H_
