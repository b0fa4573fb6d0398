// What can be looked up of the entities otherwise than by their keys. Made of them alone, so that
// it is never stored.
//
// Ownership: values, which share what they have in common as tables do. Thread-safety: none of its
// own.
#ifndef NIBBLE_SERVER_STATE_INDEX_H_
#define NIBBLE_SERVER_STATE_INDEX_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/entities.pb.h"
#include "proto/nibble/v1/job.pb.h"
#include "server/state/persistent.h"

namespace nibble {

class Index {
 public:
  // What is not looked up needs nothing.
  template <class Record>
  void Add(const std::string& /*key*/, const Record&) {}
  template <class Record>
  void Remove(const std::string& /*key*/, const Record&) {}
  void Add(const std::string& key, const v1::JobRecord& job);
  void Remove(const std::string& key, const v1::JobRecord& job);
  void Add(const std::string& key, const v1::CheckpointShard& shard);
  void Remove(const std::string& key, const v1::CheckpointShard& shard);
  void Add(const std::string& key, const v1::RequestRecord& request);
  void Remove(const std::string& key, const v1::RequestRecord& request);

  using Names = PersistentSet<std::string>;

  // Ids by number, the last submitted first.
  const PersistentMap<int64_t, std::string, std::greater<>>& jobs() const { return jobs_; }
  // Ids by number: in order of submission.
  const PersistentMap<int64_t, std::string>& unfinished() const { return unfinished_; }
  // Ids by time of finishing, then number.
  const PersistentMap<std::pair<int64_t, int64_t>, std::string>& finished() const {
    return finished_;
  }
  // Jobs with a live attempt that has ranks on the worker.
  const Names& GangsOn(absl::string_view worker) const;
  // Unfinished jobs whose origin is the checkpoint with this key.
  const Names& ForksOf(absl::string_view checkpoint_key) const;
  // Keys of the shards that the worker holds, by checkpoint, then rank.
  const Names& ShardsOn(absl::string_view worker) const;
  // Jobs with events that are to be posted and were neither delivered nor given up.
  const Names& unsettled() const { return unsettled_; }
  // Keys by the sequence of the update that carried them out.
  const PersistentMap<int64_t, std::string>& requests() const { return requests_; }

 private:
  using Sets = PersistentMap<std::string, Names>;

  PersistentMap<int64_t, std::string, std::greater<>> jobs_;
  PersistentMap<int64_t, std::string> unfinished_;
  PersistentMap<std::pair<int64_t, int64_t>, std::string> finished_;
  Sets gangs_;
  Sets forks_;
  Sets shards_;
  Names unsettled_;
  PersistentMap<int64_t, std::string> requests_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_INDEX_H_
