// The messages of the link (proto/nibble/link/v1/link.proto): their bounds, and what is derived
// from the options of the figures in them (proto/nibble/v1/figure.proto).
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_LINK_LINK_MESSAGES_H_
#define NIBBLE_WORKER_LINK_LINK_MESSAGES_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "proto/nibble/link/v1/link.pb.h"
#include "proto/nibble/v1/metrics.pb.h"

namespace nibble {

// Both sides have the same, or the greeting is refused.
inline constexpr int32_t kLinkVersion = 5;

// Limits of one report; of names in bytes, because they become labels of metrics.
inline constexpr int kMaxPrecisionSamples = 8192;
inline constexpr size_t kMaxLayerNameBytes = 128;
inline constexpr int kMaxRevisionsBegun = 16;
inline constexpr int kMaxRevisionsRefused = 8;
inline constexpr int kMaxDecisions = 16;       // of guards
inline constexpr int kMaxDecisionLayers = 32;  // named by one decision
inline constexpr int kMaxGuardTotals = 64;     // pairs of a guard and an action

// InvalidArgument, naming the field, its value and the limit.
absl::Status CheckReport(const link::v1::RankReport& report);

// Parses a message. InvalidArgument, naming the type, if the bytes are not one.
absl::Status ParseLinkMessage(absl::string_view bytes, google::protobuf::Message& message);

// A text longer than 2 KiB is cut.
link::v1::Outcome OutcomeOf(const absl::Status& status);
absl::Status StatusOf(const link::v1::Outcome& outcome);

// Adds the figures of a step that have a total.
void AddFigures(const v1::StepSample& sample, v1::StepSample& sums);

// The sample as the coordinator receives it: without the figures that stay on the worker.
v1::StepSample ForwardedSample(v1::StepSample sample);

}  // namespace nibble

#endif  // NIBBLE_WORKER_LINK_LINK_MESSAGES_H_
