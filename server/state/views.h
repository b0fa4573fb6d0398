// Reading a state for requests: entities in the form of the API's responses, and the checkpoint
// that a request refers to.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_VIEWS_H_
#define NIBBLE_SERVER_STATE_VIEWS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/queue.pb.h"
#include "proto/nibble/v1/worker.pb.h"
#include "server/state/decide.h"
#include "server/state/state.h"

namespace nibble {

// `pending`: the scheduler's reason why an unfinished job without an attempt waits; if it is empty
// the view has the reason of the job's last transition. `live` as for Decide.
v1::Job ViewJob(const State& state, const v1::JobRecord& job, const LiveProgress& live,
                absl::string_view pending);

// The job's uploads with the time of the next try, if there is something to upload.
v1::JobUploads ViewUploads(const State& state, const v1::JobRecord& job);

// Leaves out `last_heard_ms`, which is not durable.
v1::Worker ViewWorker(const State& state, const v1::WorkerRecord& worker);

v1::QueueUsage ViewUsage(const State& state, const std::string& queue);

// The reference with its attempt filled in. Step -1 means the newest good checkpoint of the job;
// attempt 0 means the newest good one at the step, or the newest damaged one if none is good.
// NotFound names the job, attempt or checkpoint by its path from `field`, the request's field with
// the reference; uncommitted checkpoints are not found.
absl::StatusOr<v1::CheckpointRef> FindCheckpoint(const State& state, const v1::CheckpointRef& ref,
                                                 absl::string_view field = "ref");

// Whether the job is of one of the projects; with none, always.
bool IsOfProjects(const std::vector<std::string>& projects, const v1::JobRecord& job);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_VIEWS_H_
