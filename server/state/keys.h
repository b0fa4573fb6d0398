// Keys of entities: text that sorts as people count, parts after '/'. Names never contain '/'.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STATE_KEYS_H_
#define NIBBLE_SERVER_STATE_KEYS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/nibble/v1/job.pb.h"

namespace nibble {

// Of the entities of which there is one: the empty key.
inline constexpr absl::string_view kOnlyKey = "";

// "train-7/": begins the keys of everything that belongs to a job.
std::string JobPrefix(absl::string_view job);
// "train-7/0000000000000012"
std::string EventKey(absl::string_view job, int64_t number);
// "train-7/0000000000001200/0000000000000003": of a checkpoint, by step, then attempt.
std::string CheckpointKey(const v1::CheckpointRef& ref);
// "…/00005": of a shard. What is before the rank begins the keys of all shards of the checkpoint.
std::string ShardKey(const v1::CheckpointRef& ref, int32_t rank);
std::string ShardPrefix(const v1::CheckpointRef& ref);
// The key of the checkpoint that the shard with this key is of; part of it.
absl::string_view CheckpointOfShard(absl::string_view shard_key);
// Of a revision of a job's recipe, as of its events.
std::string RevisionKey(absl::string_view job, int64_t number);
// Unambiguous because request ids have no '/'.
std::string RequestKey(absl::string_view author, absl::string_view request_id);
// "node-3/train-7": of what a worker is to delete; by worker, then job.
std::string RemovalPrefix(absl::string_view worker);
std::string RemovalKey(absl::string_view worker, absl::string_view job);

// "checkpoint of train-7 at step 1200 (attempt 3)", for messages.
std::string CheckpointText(const v1::CheckpointRef& ref);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_KEYS_H_
