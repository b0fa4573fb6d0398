#include "worker/interop/shard_index.h"

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/json_text.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace nibble {
namespace {

using Json = nlohmann::json;

// Refuses names that lead outside the directory.
bool IsPlainShardName(const std::string& name) {
  return name.ends_with(".safetensors") && name.size() <= 255 && name.front() != '.' &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

absl::Status Refuse(std::string_view what, const Json& value, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(kIndexFile), ": ", std::string(what),
                                                 ": ", BriefJson(value), " ", std::string(why)));
}

}  // namespace

std::vector<std::string> ShardIndex::Files() const {
  std::set<std::string> files;
  for (const auto& [tensor, file] : file_of) files.insert(file);
  return {files.begin(), files.end()};
}

absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view text) {
  NIBBLE_ASSIGN_OR_RETURN(const Json object, ParseJsonObject(kIndexFile, text));
  const auto map = object.find("weight_map");
  if (map == object.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(kIndexFile), ": weight_map is missing"));
  }
  if (!map->is_object() || map->empty()) {
    return Refuse("weight_map", *map, "is not an object of tensors and files");
  }
  ShardIndex index;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !IsPlainShardName(file.get_ref<const std::string&>())) {
      return Refuse(absl::StrCat("weight_map: ", BriefText(tensor)), file,
                    "is not the name of a .safetensors file in this directory");
    }
    index.file_of.emplace(tensor, file.get<std::string>());
  }
  return index;
}

std::string ShardIndexText(const ShardIndex& index, int64_t bytes) {
  Json map = Json::object();
  for (const auto& [tensor, file] : index.file_of) map[tensor] = file;
  return FileJson({{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(map)}});
}

std::string ShardFileName(int64_t shard, int64_t shards) {
  if (shards == 1) return std::string(kWeightsFile);
  return absl::StrFormat("model-%05d-of-%05d.safetensors", shard, shards);
}

}  // namespace nibble
