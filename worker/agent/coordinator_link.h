// The daemon's stream to the coordinator (nibble.v1.WorkerLink), and what decides which shards a
// report names.
//
// CoordinatorLink sends a report at every beat and whenever something has changed; each report is
// complete, and each response is the complete desired state. A stream that breaks is opened again
// after growing waits. That loses nothing, because the first report of a stream names everything.
//
// DamageReports keeps the damaged copies of shards that readers on this worker have found, here or
// on another worker, until the coordinator has acknowledged them, so that it offers no such copy
// again.
//
// ShardListSchedule decides which reports list the shards of this worker, since the list may be
// long: the first of a stream, those whose list differs from the last one, and every kEvery-th, in
// case the coordinator could not accept a shard when it was first listed.
//
// Ownership: CoordinatorLink owns two threads; the others are values. Thread-safety: all methods of
// CoordinatorLink and DamageReports from any thread; ShardListSchedule is for one thread at a time.
// Callbacks are called with no lock taken; `report` and `lost` from one thread of the link,
// `desired` from the other.
#ifndef NIBBLE_WORKER_AGENT_COORDINATOR_LINK_H_
#define NIBBLE_WORKER_AGENT_COORDINATOR_LINK_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/backoff.h"
#include "common/mutex.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/peer_server.h"

namespace nibble {

class CoordinatorLink {
 public:
  struct Options {
    std::string target;  // host:port
    LinkSecurity security;
    std::chrono::milliseconds beat{1000};
    Backoff::Options backoff;
    // Makes report `number` of a stream; the first, 1, must be complete.
    std::function<v1::ConnectRequest(int64_t number)> report;
    // Receives the complete desired state.
    std::function<void(const v1::ConnectResponse& response)> desired;
    // A stream has ended with `status`; the next try comes after `wait`. May be null.
    std::function<void(const absl::Status& status, std::chrono::milliseconds wait)> lost;
  };

  explicit CoordinatorLink(Options options);
  ~CoordinatorLink();
  CoordinatorLink(const CoordinatorLink&) = delete;
  CoordinatorLink& operator=(const CoordinatorLink&) = delete;

  // Something has changed: reports now instead of at the next beat.
  void ReportNow();

 private:
  struct Stream;
  void Run();
  // One stream, to its end. `answered`: the coordinator has sent something.
  absl::Status RunStream(bool& answered);
  void Read(Stream& stream, bool& answered);
  v1::ConnectRequest MakeReport(int64_t number) const;
  // Waits until the next beat or ReportNow; false if the stream or the link has ended.
  bool AwaitBeat();

  const Options options_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool report_now_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;   // the reader has reached the end of the stream
  int64_t lease_ms_ ABSL_GUARDED_BY(mutex_) = 0;  // as last received; 0: none yet
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the open one
  std::thread thread_;
};

class DamageReports {
 public:
  static constexpr size_t kMostInAReport = 1000;

  // `changed`: there is something to report; may be null.
  explicit DamageReports(std::function<void()> changed) : changed_(std::move(changed)) {}

  // `holder`: the name of the worker that stores the copy. Repeats before the answer have no
  // effect.
  void Found(const v1::CheckpointRef& ref, int32_t rank, const std::string& holder,
             const absl::Status& damage);
  // Whether any copy of the shard was found damaged in this life of the daemon.
  bool AnyOf(const v1::CheckpointRef& ref, int32_t rank) const;

  // For report `number` of a stream; 1 begins a stream. `ordered`: a desired state of the stream
  // has arrived. Before it made one, the coordinator does not know what this worker was ordered to
  // read, and leaves damage elsewhere out: reports until then do not count.
  std::vector<v1::DamagedShard> Report(int64_t number, bool ordered);
  // The coordinator has received all reports of the stream up to `number`.
  void Answered(int64_t number);

 private:
  struct Waiting {
    v1::DamagedShard shard;
    int64_t first_report = 0;  // of this stream that named it and counts; 0: none yet
  };

  const std::function<void()> changed_;
  mutable Mutex mutex_;
  // By shard and holder.
  std::map<std::pair<std::string, std::string>, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> found_ ABSL_GUARDED_BY(mutex_);  // shards
};

class ShardListSchedule {
 public:
  static constexpr int64_t kEvery = 10;

  // Whether report `number`, counted from 1 within a stream, lists the shards. If so they count as
  // listed.
  bool IsDue(int64_t number, const std::vector<v1::ShardReport>& shards);
  // The next report lists the shards, for example because an answer has dropped some.
  void Reset() { listed_.reset(); }

 private:
  std::optional<std::string> listed_;  // serialised
  int64_t listed_in_ = 0;              // number of the report
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_COORDINATOR_LINK_H_
