// Makes backups while the coordinator runs: at its start, at a fixed interval, and on request
// (backup_request.h), in a thread of its own, so that no call or tick waits for the backups' disk.
//
// A failed backup is logged and counted, and repeated after kBackupRetryMs or the interval if that
// is shorter; the coordinator keeps serving. A request is carried out once, even if its answer
// cannot be written.
//
// As long as it lives `backup now` finds it (LockBackupRequests).
//
// Ownership: borrows clock and metrics, which outlive it; owns its thread. The destructor waits for
// a backup that is being made. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_BACKUP_BACKUP_RUNNER_H_
#define NIBBLE_SERVER_BACKUP_BACKUP_RUNNER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/files/file_lock.h"
#include "common/mutex.h"
#include "server/controller/clock.h"
#include "server/controller/coordinator_metrics.h"
#include "server/store/backups.h"

namespace nibble {

inline constexpr int64_t kBackupRetryMs = 60'000;

class BackupRunner {
 public:
  struct Options {
    std::string directory;
    int64_t every_ms = 3'600'000;  // 0: only on request
    // Makes one backup in the directory (RocksStore::AddBackup).
    std::function<absl::StatusOr<StoreBackup>()> make;
  };

  BackupRunner(const Clock& clock, CoordinatorMetrics& metrics, Options options);
  ~BackupRunner();
  BackupRunner(const BackupRunner&) = delete;
  BackupRunner& operator=(const BackupRunner&) = delete;

  // Makes the backup that is due, if any. Called with each tick of the coordinator; does not wait.
  void Tick();
  // Waits until all that earlier ticks started is done.
  void Settle();

 private:
  void Run();
  void RunOnce(int64_t now_ms);
  // Takes the lock of requests if it is not taken, such as after the directory was replaced.
  void Announce();

  const Clock& clock_;
  CoordinatorMetrics& metrics_;
  const Options options_;
  // Used by the thread only.
  int64_t next_ms_;  // when the next periodic backup is due
  std::optional<FileLock> running_;
  bool unannounced_ = false;             // and the log says so
  std::optional<std::string> answered_;  // the last request, also if the answer was not written

  Mutex mutex_;
  CondVar changed_;
  bool ticked_ ABSL_GUARDED_BY(mutex_) = false;
  bool working_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the above
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_BACKUP_BACKUP_RUNNER_H_
