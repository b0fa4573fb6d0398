// Serves what ranks have written (nibble.v1.RankLogs), of gangs that run and of those whose logs
// are still on disk. A reader has a place of its own in the log: however slow it is, the rank
// writes on, and what has left the log meanwhile is skipped with a line that says so.
//
// Lines are cut at kMaxLineBytes and made UTF-8. Readers that follow are bounded in number.
//
// Ownership: the service borrows what `find` does. Thread-safety: calls are served by gRPC's
// threads; `find` is called from them.
#ifndef NIBBLE_WORKER_AGENT_LOG_SERVICE_H_
#define NIBBLE_WORKER_AGENT_LOG_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "worker/agent/rank_log.h"

namespace nibble {

inline constexpr size_t kMaxLineBytes = 16 << 10;

// The log of one rank of an attempt. NotFound where there is none.
using FindRankLog = std::function<absl::StatusOr<std::shared_ptr<const RankLog>>(
    const std::string& job, int64_t attempt, int32_t rank)>;

struct LogServiceLimits {
  int readers = 64;  // at once; more are refused with RESOURCE_EXHAUSTED
};

std::unique_ptr<grpc::Service> MakeLogService(FindRankLog find, const LogServiceLimits& limits);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_LOG_SERVICE_H_
