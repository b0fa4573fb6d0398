// Damaged copies of shards that readers on this worker have met, here or with another worker, until
// the coordinator has heard of them: a copy that one reader found damaged is not to be given to the
// next one.
//
// Ownership: values. Thread-safety: all methods from any thread; `changed` is called with nothing
// locked.
#ifndef NIBBLE_WORKER_AGENT_DAMAGE_REPORTS_H_
#define NIBBLE_WORKER_AGENT_DAMAGE_REPORTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/nibble/v1/worker_link.pb.h"

namespace nibble {

class DamageReports {
 public:
  static constexpr size_t kMostInAReport = 1000;

  // `changed`: there is something to report; may be null.
  explicit DamageReports(std::function<void()> changed) : changed_(std::move(changed)) {}

  // `holder`: the worker that has the copy, by name. Again does nothing until it is answered.
  void Found(const v1::CheckpointRef& ref, int32_t rank, const std::string& holder,
             const absl::Status& damage);
  // Whether any copy of the shard was found damaged in this life of the worker.
  bool AnyOf(const v1::CheckpointRef& ref, int32_t rank) const;

  // For report `number` of a stream; 1 begins a stream.
  std::vector<v1::DamagedShard> Report(int64_t number);
  // The coordinator has heard all reports of the stream up to `number`.
  void Answered(int64_t number);

 private:
  struct Waiting {
    v1::DamagedShard shard;
    int64_t first_report = 0;  // of this stream, that named it; 0: none yet
  };

  const std::function<void()> changed_;
  mutable std::mutex mutex_;
  // Guarded by mutex_. The keys have the reference as bytes.
  std::map<std::pair<std::string, std::string>, Waiting> waiting_;  // by shard and holder
  std::set<std::string> found_;                                     // shards
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_DAMAGE_REPORTS_H_
