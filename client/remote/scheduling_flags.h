// Options that state where and when a job may run, and how it restarts.
//
// Thread-safety: values; none while options are added.
#ifndef NIBBLE_CLIENT_REMOTE_SCHEDULING_FLAGS_H_
#define NIBBLE_CLIENT_REMOTE_SCHEDULING_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/command_line/command_line.h"
#include "proto/nibble/v1/job.pb.h"

namespace nibble {

// Unset flags keep the value of the spec or scheduling that they override.
struct SchedulingFlags {
  std::optional<std::string> queue;
  std::optional<std::string> project;  // not of the spec: Over sets it, and Settings does not
  std::optional<int32_t> priority;
  std::vector<int32_t> ranks;
  std::optional<int32_t> min_slots, max_slots;
  std::vector<std::string> required, preferred;  // "key=value"
  bool fp4 = false;

  bool given() const;
  // As settings for OverrideFields (job/overrides.h). InvalidArgument names the option.
  absl::StatusOr<std::vector<std::string>> Settings() const;
  // Applies the flags to `base`. --min-slots and --max-slots allow the numbers of ranks in that
  // range that divide `batch` into whole micro-batches. InvalidArgument names the option.
  absl::StatusOr<v1::JobScheduling> Over(v1::JobScheduling base, int64_t batch,
                                         int64_t micro_batch) const;
};
void AddSchedulingOptions(Command verb, SchedulingFlags& flags);

struct RestartFlags {
  std::optional<int32_t> max_restarts;
  std::optional<std::string> backoff, max_backoff;

  bool given() const { return max_restarts || backoff || max_backoff; }
  // As in SchedulingFlags.
  absl::StatusOr<std::vector<std::string>> Settings() const;
  absl::StatusOr<v1::RestartPolicy> Over(v1::RestartPolicy base) const;
};
void AddRestartOptions(Command verb, RestartFlags& flags);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_SCHEDULING_FLAGS_H_
