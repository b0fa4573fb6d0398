// Entities as people and programs see them: what answers of the API hold.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_VIEWS_H_
#define NIBBLE_SERVER_STATE_VIEWS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/queue.pb.h"
#include "proto/nibble/v1/worker.pb.h"
#include "server/state/decide.h"
#include "server/state/state.h"

namespace nibble {

// Of a job that is not finished and has no attempt, `pending` are the scheduler's words on why;
// empty: the reason of its last move. `live` as for Decide.
v1::Job ViewJob(const State& state, const v1::JobRecord& job, const LiveProgress& live,
                absl::string_view pending);

// Without `last_heard_ms`, which is not durable.
v1::Worker ViewWorker(const State& state, const v1::WorkerRecord& worker);

v1::QueueUsage ViewUsage(const State& state, const std::string& queue);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_VIEWS_H_
