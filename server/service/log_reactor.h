// StreamLogs: lines of ranks, read from the workers that had them.
//
// What is over is read rank after rank, by number. What is followed is read from all ranks at once,
// in the order of arrival, attempt after attempt until the job is finished. Of each rank one
// response of its worker is held and no more is asked for until it is written on: a caller who does
// not read holds up the workers and costs nothing further. A worker that is silent for
// `silence_ms` while it is to hand out what it has, or whose connection breaks, is named in
// UNAVAILABLE, after the lines of the others; while a followed attempt lives it is asked again
// until it answers or the attempt is over, and an attempt after it goes on with the stream.
//
// Ownership: borrows the controller, which outlives every call. Thread-safety: as gRPC asks.
#ifndef NIBBLE_SERVER_SERVICE_LOG_REACTOR_H_
#define NIBBLE_SERVER_SERVICE_LOG_REACTOR_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "grpcpp/support/server_callback.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "server/controller/controller.h"

namespace nibble {

struct LogLimits {
  int streams = 64;             // open at once
  int followed_ranks = 1024;    // of one stream that are read at once
  int64_t silence_ms = 10'000;  // of a worker that has something to hand out
  int64_t look_ms = 200;        // between two looks at what has become of the job
};

// How many are open; shared by the service and its streams.
using OpenStreams = std::shared_ptr<std::atomic<int>>;

// The stream that serves the request; ends at once with `refused` where that is not OK.
grpc::ServerWriteReactor<v1::StreamLogsResponse>* StreamRankLogs(
    Controller& controller, const LogLimits& limits, const OpenStreams& open,
    const v1::StreamLogsRequest& request, const absl::Status& refused);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_LOG_REACTOR_H_
