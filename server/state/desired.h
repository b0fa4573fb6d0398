// What a worker should be doing, whole: level-triggered, so that telling it again changes nothing.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_DESIRED_H_
#define NIBBLE_SERVER_STATE_DESIRED_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/state/state.h"

namespace nibble {

// Every gang with ranks on this life of the worker. What it runs beyond these is to be killed.
std::vector<v1::DesiredGang> DesiredGangs(const State& state, const std::string& worker,
                                          int64_t incarnation);

// Every shard of a checkpoint, by rank, and the present workers that have it.
std::vector<v1::DesiredReplica> ShardSources(const State& state, const v1::CheckpointRef& ref);

// Of what a worker says that it holds: shards that this store has ordered, in its present epoch, of
// checkpoints that are not in the catalogue and not being written by an attempt that lives. In one
// epoch the store forgets nothing, so it has given them up: a checkpoint was deleted, or an attempt
// ended before its commit. Of others its silence says nothing (docs/decisions/0008-whose-store.md).
std::vector<v1::DroppedShard> DroppedShards(const State& state,
                                            absl::Span<const v1::ShardReport> held);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_DESIRED_H_
