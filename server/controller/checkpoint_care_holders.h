// Which workers are to have the copies of a shard: who takes one where some are missing, and whose
// is one too many. Pure.
//
// Each shard orders the workers in its own way, the same for taking and for staying: one that comes
// or goes moves no shard between others, and the same state always gives the same choice.
//
// A copy is missing where fewer workers than wanted are present and have it. It is one too many
// only where as many others have it that are present and do not drain: so a copy that was just made
// is not taken away, and what goes is not asked for again.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_HOLDERS_H_
#define NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_HOLDERS_H_

#include <string>
#include <vector>

#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/state/state.h"

namespace nibble {

bool HasOpenTask(const v1::Checkpoint& checkpoint);

// Workers that take copies of anything: present and open. By name.
std::vector<std::string> TakersOf(const State& state);

// Holders of a shard that are present, in the order in which they came to it.
std::vector<std::string> PresentHolders(const State& state, const v1::CheckpointShard& shard);

// Those of `takers` that are to take a copy, as many as are missing where those that drain count
// for nothing; none where nobody who is present has one.
std::vector<std::string> NextHolders(const State& state, const v1::CheckpointRef& ref,
                                     const v1::CheckpointShard& shard, int copies,
                                     const std::vector<std::string>& takers);

// Present holders whose copies are too many, all of them at once. Never of a checkpoint that is not
// good or that a task reads; nor on a worker with ranks that began from it, or with the rank that
// wrote the shard, while their attempt lives.
std::vector<std::string> SurplusHolders(const State& state, const v1::Checkpoint& checkpoint,
                                        const v1::CheckpointShard& shard, int copies);

// Whether a worker that says it has a shard, and is no holder of it, is to become none: it would be
// one too many. The same exceptions as above.
bool IsUnwanted(const State& state, const std::string& worker, const v1::ShardReport& report,
                int copies);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_CHECKPOINT_CARE_HOLDERS_H_
