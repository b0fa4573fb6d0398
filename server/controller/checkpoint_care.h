// The coordinator's care for checkpoints after they are written: copies on other workers,
// requested tasks, surplus copies, and retention.
//
// Placement of copies. Each shard orders the workers in its own way, for taking copies as for
// keeping them: a worker that comes or goes moves no shard between others, and the same state gives
// the same choice. A copy is missing if fewer present workers than wanted have it. It is surplus
// only if enough other workers that are present and not draining have it: so a copy just made is
// not dropped, and a dropped copy is not requested again.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_H_
#define NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/state/decide.h"
#include "server/state/state.h"

namespace nibble {

bool HasOpenTask(const v1::Checkpoint& checkpoint);

// Workers that may take copies: present and open. By name.
std::vector<std::string> TakersOf(const State& state);

// Present holders of a shard, in the order in which they got it.
std::vector<std::string> PresentHolders(const State& state, const v1::CheckpointShard& shard);

// The present worker that has most of the shards, the first by name; empty: none has any.
std::string FindMostHolder(const State& state, const v1::CheckpointRef& ref);

// The rank of the first shard that no present worker has; unset: there is none.
std::optional<int32_t> FindAbsentShard(const State& state, const v1::CheckpointRef& ref);

// The workers among `takers` that take a copy: as many as are missing, not counting draining
// holders; none if no present worker has the shard.
std::vector<std::string> NextHolders(const State& state, const v1::CheckpointRef& ref,
                                     const v1::CheckpointShard& shard, int copies,
                                     const std::vector<std::string>& takers);

// All present holders with surplus copies. None for a checkpoint that is not good or that a task
// reads, nor on workers whose living attempt resumed from it, or whose living rank wrote the shard.
std::vector<std::string> SurplusHolders(const State& state, const v1::Checkpoint& checkpoint,
                                        const v1::CheckpointShard& shard, int copies);

// Whether a shard that a worker reports, without being its holder, would be surplus. The same
// exceptions as above.
bool IsUnwanted(const State& state, const std::string& worker, const v1::ShardReport& report,
                int copies);

// The shards of which a present, draining worker has a copy and no present worker that stays has
// one, of checkpoints that get copies (CareFor). 0 if no worker may take them. Looks at every job.
int64_t CountSoleShards(const State& state, const std::string& worker);

struct CheckpointWork {
  std::vector<v1::DesiredReplica> replicas;
  std::vector<v1::DesiredTask> tasks;
};

// The care that one job's checkpoints need; the job may be finished.
struct JobCare {
  std::map<std::string, CheckpointWork> work;  // by worker
  bool surplus = false;                        // whether DecideSurplus has something to decide
  int64_t looks = 0;                           // records examined: the cost
};

// The work for a job's checkpoints. Every shard of the newest good checkpoint, and of pinned ones,
// gets copies on `copies` present workers; other checkpoints keep their copies, up to as many. A
// task goes to the present worker that has had the first shard for longest, and stays there while
// copies are made: a second worker would write to the destination of the first. An upload stays
// with the worker that was chosen at its request while that is present. The same state gives the
// same work, so nothing moves back and forth. `takers`: TakersOf(state).
JobCare CareFor(const State& state, const std::string& job, int copies,
                const std::vector<std::string>& takers);

// Ends the SurplusHolders of every shard of the job as holders; unset if there are none. Workers
// may be ordered to drop their copies only once that is durable.
MaybeUpdate DecideSurplus(const State& state, const std::string& job, int copies,
                          const Caller& caller);

// Good checkpoints that the job's spec does not keep: all but the newest checkpoints.keep_last and
// the steps that are multiples of checkpoints.keep_every. Checkpoints in use are not among them:
// pinned, with a requested task (an upload among them), loaded by the living attempt, or the origin
// of a fork. Nor are those that are older than no State::NewestWhole: workers delete these at once
// (server/state/workers.h). Sets `waits` if there are such: a worker that returns may change that.
std::vector<v1::CheckpointRef> BeyondRetention(const State& state, const std::string& job,
                                               bool* waits = nullptr);

// Deletes one of them; unset if it has come into use.
MaybeUpdate DecideRetention(const State& state, const v1::CheckpointRef& ref, const Caller& caller);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_H_
