// Which files of a model's directory store its tensors: model.safetensors alone, or the shards that
// model.safetensors.index.json lists.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_INTEROP_SHARD_INDEX_H_
#define NIBBLE_WORKER_INTEROP_SHARD_INDEX_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble {

inline constexpr std::string_view kWeightsFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";
inline constexpr int64_t kMaxShards = 99999;

struct ShardIndex {
  std::map<std::string, std::string, std::less<>> file_of;  // by tensor
  // Every file once, ordered by name.
  std::vector<std::string> Files() const;
};

// Parses an index of files in its own directory. InvalidArgument, naming the entry, for a
// weight_map that is missing, empty or contains anything but plain names that end in .safetensors.
absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view text);

// The text of the file. `bytes`: of all tensors together.
std::string ShardIndexText(const ShardIndex& index, int64_t bytes);

// "model-00002-of-00003.safetensors", counted from 1; kWeightsFile if there is only one.
std::string ShardFileName(int64_t shard, int64_t shards);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_SHARD_INDEX_H_
