// What is to be done for checkpoints beyond writing them: copies on other workers, tasks that
// somebody asked for, giving up copies that are too many, and deleting checkpoints that a job's
// spec no longer keeps. Pure.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_H_
#define NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_H_

#include <cstdint>
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

// Of one job, finished or not.
struct JobCare {
  std::map<std::string, CheckpointWork> work;  // by worker
  bool surplus = false;                        // DecideSurplus has something to decide
  int64_t looks = 0;                           // at records, count: what it cost
};

// The newest good checkpoint, and each that is pinned, is to be with `copies` present workers,
// shard by shard; others keep what copies they have, up to as many. A task is for the first present
// worker that has most of the shards. The same state gives the same work, so that nothing moves
// from worker to worker. `takers`: TakersOf.
JobCare CareFor(const State& state, const std::string& job, int copies,
                const std::vector<std::string>& takers);

// The SurplusHolders of every shard of the job are holders no longer; unset where there are none.
// Only once that is durable are they to be told.
MaybeUpdate DecideSurplus(const State& state, const std::string& job, int copies,
                          const Caller& caller);

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
