// Which reports name the shards of this worker: the first of a stream, those where they are others
// than were named last, and every kEvery-th, in case that the coordinator could not take one when
// it heard of it. A worker that keeps many shards says so when it matters, and not with each beat.
//
// Ownership: values. Thread-safety: none.
#ifndef NIBBLE_WORKER_AGENT_SHARD_NEWS_H_
#define NIBBLE_WORKER_AGENT_SHARD_NEWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/nibble/v1/worker_link.pb.h"

namespace nibble {

class ShardNews {
 public:
  static constexpr int64_t kEvery = 10;

  // Of report `number`, which grows by one from 1 within a stream; then they count as named.
  bool AreToBeNamed(int64_t number, const std::vector<v1::ShardReport>& shards);
  // An answer has dropped some: whatever becomes of that is named.
  void Dropped() { named_.reset(); }

 private:
  std::optional<std::string> named_;  // as bytes
  int64_t named_in_ = 0;              // number of the report
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_SHARD_NEWS_H_
