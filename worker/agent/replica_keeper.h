// Brings the copies that the coordinator wants this worker to hold, in the background: one transfer
// at a time, whatever is asked for. What fails is tried again after waits that grow; what is no
// longer asked for is called off.
//
// Ownership: borrows desk and fetcher; owns a thread. Thread-safety: all methods from any thread.
#ifndef NIBBLE_WORKER_AGENT_REPLICA_KEEPER_H_
#define NIBBLE_WORKER_AGENT_REPLICA_KEEPER_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/backoff.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/checkpoint_desk.h"
#include "worker/agent/shard_fetcher.h"

namespace nibble {

class ReplicaKeeper {
 public:
  struct Options {
    CheckpointDesk* desk = nullptr;
    ShardFetcher* fetcher = nullptr;
    Backoff::Options backoff;
    std::function<void(const std::string&)> log;  // a line for people; may be null
  };
  explicit ReplicaKeeper(Options options);
  ~ReplicaKeeper();
  ReplicaKeeper(const ReplicaKeeper&) = delete;
  ReplicaKeeper& operator=(const ReplicaKeeper&) = delete;

  // Every copy that is asked for, the more urgent first.
  void Want(const std::vector<v1::DesiredReplica>& replicas);

 private:
  using Clock = std::chrono::steady_clock;
  struct Wish {
    v1::DesiredReplica replica;
    size_t place = 0;  // among those that are asked for
    Clock::time_point not_before;
    Backoff backoff;
  };

  void Run();
  // Of those that are due the most urgent, else the one that will be first; null: none is asked
  // for.
  Wish* Next();

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool closing_ = false;
  std::map<std::string, Wish> wishes_;  // by key of the shard
  std::string under_way_;               // key
  std::unique_ptr<Cancellation> cancellation_;
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_REPLICA_KEEPER_H_
