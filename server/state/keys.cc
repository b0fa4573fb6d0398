#include "server/state/keys.h"

#include "absl/strings/str_cat.h"

namespace nibble {

std::string JobPrefix(absl::string_view job) { return absl::StrCat(job, "/"); }

std::string EventKey(absl::string_view job, int64_t number) {
  return absl::StrCat(job, "/", absl::Dec(number, absl::kZeroPad16));
}

std::string CheckpointKey(const v1::CheckpointRef& ref) {
  return absl::StrCat(ref.job(), "/", absl::Dec(ref.step(), absl::kZeroPad16), "/",
                      absl::Dec(ref.attempt(), absl::kZeroPad16));
}

std::string ShardPrefix(const v1::CheckpointRef& ref) {
  return absl::StrCat(CheckpointKey(ref), "/");
}

std::string ShardKey(const v1::CheckpointRef& ref, int32_t rank) {
  return absl::StrCat(ShardPrefix(ref), absl::Dec(rank, absl::kZeroPad5));
}

absl::string_view CheckpointOfShard(absl::string_view shard_key) {
  return shard_key.substr(0, shard_key.rfind('/'));
}

std::string RevisionKey(absl::string_view job, int64_t number) {
  return absl::StrCat(JobPrefix(job), absl::Dec(number, absl::kZeroPad20));
}

std::string RequestKey(absl::string_view author, absl::string_view request_id) {
  return absl::StrCat(author, "/", request_id);
}

std::string RemovalPrefix(absl::string_view worker) { return absl::StrCat(worker, "/"); }

std::string RemovalKey(absl::string_view worker, absl::string_view job) {
  return absl::StrCat(RemovalPrefix(worker), job);
}

std::string CheckpointText(const v1::CheckpointRef& ref) {
  return absl::StrCat("checkpoint of ", ref.job(), " at step ", ref.step(), " (attempt ",
                      ref.attempt(), ")");
}

}  // namespace nibble
