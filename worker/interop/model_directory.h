// A model's directory: which files store its tensors, and how it is written.
//
// ShardIndex: model.safetensors alone, or the shards that model.safetensors.index.json lists.
//
// StagedDirectory: writes a directory atomically. Files are written to a temporary directory beside
// it, which Commit() makes durable and moves into place.
//
// Ownership: a StagedDirectory owns the temporary directory until Commit() succeeds, and its
// destructor removes it. A process killed in between leaves "<path>.tmp-<pid>-<n>" behind and the
// target unchanged.
// Thread-safety: values and pure functions; a StagedDirectory: one thread at a time.
#ifndef NIBBLE_WORKER_INTEROP_MODEL_DIRECTORY_H_
#define NIBBLE_WORKER_INTEROP_MODEL_DIRECTORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
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

class StagedDirectory {
 public:
  // With `overwrite`, replaces an existing directory only if it is empty or contains a model (has a
  // config.json), so that a mistyped path destroys nothing else.
  //
  //   AlreadyExists       the path exists, and `overwrite` is off
  //   FailedPrecondition  it exists and may not be replaced
  //   NotFound, ...       the system's error, e.g. for a parent that does not exist
  static absl::StatusOr<std::unique_ptr<StagedDirectory>> Create(const std::string& path,
                                                                 bool overwrite);

  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  ~StagedDirectory();

  // The path to write a file of that name to before Commit(); the writer syncs it.
  std::string PathOf(std::string_view name) const;
  // Writes and syncs a small file.
  absl::Status Write(std::string_view name, std::string_view content);

  // Syncs the directory, moves it into place, syncs its parent. A replaced directory is atomically
  // exchanged with the new one and then removed; FailedPrecondition if the file system cannot
  // exchange. AlreadyExists if something took the name meanwhile. An error of the removal or of the
  // last sync leaves the new directory in place. Call it once, last.
  absl::Status Commit();

 private:
  StagedDirectory(std::string path, std::string temporary, bool replaces);

  const std::string path_;
  std::string temporary_;  // empty once it is removed
  const bool replaces_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_MODEL_DIRECTORY_H_
