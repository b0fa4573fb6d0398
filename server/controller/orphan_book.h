// What present workers have of jobs that the store's present epoch did not order, as they reported
// it last: for recovery (server/state/decide_orphans.h) and for people. Never stored: workers
// report it again.
//
// Ownership: owns what it holds. Thread-safety: all methods; it calls nobody, so any lock may be
// held around it.
#ifndef NIBBLE_SERVER_CONTROLLER_ORPHAN_BOOK_H_
#define NIBBLE_SERVER_CONTROLLER_ORPHAN_BOOK_H_

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "proto/nibble/v1/worker_link.pb.h"
#include "server/state/decide_orphans.h"

namespace nibble {

class OrphanBook {
 public:
  // Of one job, by worker; owns what the evidence points to.
  class Holdings {
   public:
    explicit Holdings(std::map<std::string, v1::Orphan> by_worker);
    Holdings(const Holdings&) = delete;
    Holdings& operator=(const Holdings&) = delete;
    Evidence evidence() const { return evidence_; }

   private:
    std::map<std::string, v1::Orphan> by_worker_;
    std::vector<OrphanEvidence> evidence_;
  };

  // A report that names every shard of the worker (`all_shards`); `ours` is the store's identity.
  void Take(const std::string& worker, const v1::ConnectRequest& report,
            const v1::StoreIdentity& ours);
  // The worker is away.
  void Forget(const std::string& worker);

  Holdings Of(const std::string& job) const;
  // Ids, of all workers and of one.
  std::set<std::string> Jobs() const;
  std::set<std::string> JobsOn(const std::string& worker) const;
  // The attempt of the job whose ranks run on the worker; 0: none does.
  int64_t RunningOn(const std::string& worker, const std::string& job) const;
  // A worker where ranks of the job run that is not one of `living`'s attempt; empty: none.
  std::string StrayOf(const std::string& job, int64_t living) const;
  // Shards of known jobs that the worker has under an older order, for its acknowledgement.
  std::vector<v1::ShardReport> ShardsOn(const std::string& worker) const;
  bool empty() const;

 private:
  void Erase(const std::string& worker);  // with mutex_ held

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<std::string, std::map<std::string, v1::Orphan>> orphans_;  // by job, then worker
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_ORPHAN_BOOK_H_
