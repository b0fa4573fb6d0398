// Options that say where and when a job may run, and what follows its failures.
//
// Thread-safety: values; options as CLI::App.
#ifndef NIBBLE_CLIENT_REMOTE_SCHEDULING_FLAGS_H_
#define NIBBLE_CLIENT_REMOTE_SCHEDULING_FLAGS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/nibble/v1/job.pb.h"

namespace nibble {

// What is not given is left to what it goes over.
struct SchedulingFlags {
  std::optional<std::string> queue;
  std::optional<int32_t> priority;
  std::vector<int32_t> ranks;
  std::optional<int32_t> min_slots, max_slots;
  std::vector<std::string> required, preferred;  // "key=value"
  bool fp4 = false;

  bool given() const;
  // The same over a spec: settings for OverrideFields (job/overrides.h). InvalidArgument names the
  // option.
  absl::StatusOr<std::vector<std::string>> Settings() const;
  // `batch` and `micro_batch` sequences a step share out evenly: of --min-slots and --max-slots
  // the numbers of ranks that do. InvalidArgument names the option.
  absl::StatusOr<v1::JobScheduling> Over(v1::JobScheduling base, int64_t batch,
                                         int64_t micro_batch) const;
};
void AddSchedulingOptions(CLI::App* verb, SchedulingFlags& flags);

struct RestartFlags {
  std::optional<int32_t> max_restarts;
  std::optional<std::string> backoff, max_backoff;

  bool given() const { return max_restarts || backoff || max_backoff; }
  // As those of SchedulingFlags.
  absl::StatusOr<std::vector<std::string>> Settings() const;
  absl::StatusOr<v1::RestartPolicy> Over(v1::RestartPolicy base) const;
};
void AddRestartOptions(CLI::App* verb, RestartFlags& flags);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_SCHEDULING_FLAGS_H_
