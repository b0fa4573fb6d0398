#include "worker/agent/shard_news.h"

#include <utility>

namespace nibble {

bool ShardNews::AreToBeNamed(int64_t number, const std::vector<v1::ShardReport>& shards) {
  v1::ConnectRequest request;
  for (const v1::ShardReport& shard : shards) *request.add_shards() = shard;
  std::string bytes = request.SerializeAsString();
  if (number > 1 && number < named_in_ + kEvery && named_ == bytes) return false;
  named_ = std::move(bytes);
  named_in_ = number;
  return true;
}

}  // namespace nibble
