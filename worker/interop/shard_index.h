// Which files a model's tensors are in: model.safetensors alone, or several that
// model.safetensors.index.json lists.
//
// Thread-safety: values and pure functions.
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
  // Every file once, in order of name.
  std::vector<std::string> Files() const;
};

// InvalidArgument naming the entry for what is no index of files in its own directory: a weight_map
// that is missing, empty or holds anything but plain names that end in .safetensors.
absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view text);

// The text of the file. `bytes`: of all tensors together.
std::string ShardIndexText(const ShardIndex& index, int64_t bytes);

// "model-00002-of-00003.safetensors", counted from 1; kWeightsFile where there is one only.
std::string ShardFileName(int64_t shard, int64_t shards);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_SHARD_INDEX_H_
