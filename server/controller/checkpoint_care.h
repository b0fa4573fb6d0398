// What is to be done for checkpoints beyond writing them: copies on other workers, tasks that
// somebody asked for, and deleting those that a job's spec no longer keeps. Pure.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_H_
#define NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/state/decide_gang.h"
#include "server/state/state.h"

namespace nibble {

struct CheckpointWork {
  std::vector<v1::DesiredReplica> replicas;
  std::vector<v1::DesiredTask> tasks;
};

// By worker. The newest good checkpoint of each unfinished job is to be with `copies` present
// workers, shard by shard; a task is for the first present worker that has most of the shards. The
// same state gives the same work, so that nothing moves from worker to worker.
std::map<std::string, CheckpointWork> PlanCheckpointWork(const State& state, int copies);

// Good checkpoints that the job's spec does not keep: all but the newest checkpoints.keep_last and
// the steps that are multiples of checkpoints.keep_every. Those in use stay: pinned, with a task
// under way, loaded by the living attempt, or where a fork begins.
std::vector<v1::CheckpointRef> BeyondRetention(const State& state, const std::string& job);

// The end of one of them; unset where it has come into use.
MaybeUpdate DecideRetention(const State& state, const v1::CheckpointRef& ref, const Caller& caller);

// Whether a shard is of a checkpoint that is not in the catalogue and older than a good one of its
// job: it was deleted, or came too late, and is not taken in, even of an attempt that lives.
bool IsOutlived(const State& state, const v1::ShardReport& shard);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_H_
