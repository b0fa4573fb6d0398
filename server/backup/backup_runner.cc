#include "server/backup/backup_runner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/files/files.h"
#include "server/backup/backup_request.h"
#include "server/controller/log.h"

namespace nibble {

BackupRunner::BackupRunner(const Clock& clock, CoordinatorMetrics& metrics, Options options)
    : clock_(clock), metrics_(metrics), options_(std::move(options)), next_ms_(clock.SteadyMs()) {
  metrics_.BackupsBegin(options_.every_ms);
  // For requests; a failure is reported when the first backup fails.
  (void)MakeDirectories(options_.directory);
  Announce();
  thread_ = std::thread([this] { Run(); });
}

BackupRunner::~BackupRunner() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
  }
  changed_.SignalAll();
  thread_.join();
}

void BackupRunner::Tick() {
  MutexLock lock(&mutex_);
  ticked_ = true;
  changed_.SignalAll();
}

void BackupRunner::Settle() {
  MutexLock lock(&mutex_);
  while (ticked_ || working_) changed_.Wait(&mutex_);
}

void BackupRunner::Run() {
  if (const auto found = ListBackups(options_.directory); found.ok() && !found->intact.empty()) {
    metrics_.BackupFound(found->intact.back().made, found->intact.back().bytes);
  }
  while (true) {
    {
      MutexLock lock(&mutex_);
      working_ = false;
      changed_.SignalAll();
      while (!ticked_ && !ending_) changed_.Wait(&mutex_);
      if (ending_) return;
      ticked_ = false;
      working_ = true;
    }
    RunOnce(clock_.SteadyMs());
  }
}

void BackupRunner::Announce() {
  if (running_ && running_->IsInPlace()) return;
  running_.reset();
  absl::StatusOr<FileLock> lock = LockBackupRequests(options_.directory);
  if (lock.ok()) {
    running_ = *std::move(lock);
  } else if (!std::exchange(unannounced_, true)) {
    Log(LogLevel::kWarning,
        absl::StrCat("'backup now' does not find this coordinator yet: ", lock.status().message()));
  }
}

void BackupRunner::RunOnce(int64_t now_ms) {
  Announce();
  const bool due = options_.every_ms > 0 && now_ms >= next_ms_;
  // Read before the backup begins: it has everything that the requester knew to be durable.
  std::optional<std::string> request = ReadBackupRequest(options_.directory);
  // It could not be answered or removed: with a backup for each tick the older ones would go.
  if (request == answered_) request.reset();
  if (!due && !request.has_value()) return;
  const absl::Time begun = absl::FromUnixMillis(clock_.NowUnixMs());
  const absl::StatusOr<StoreBackup> made = options_.make();
  const int64_t end_ms = clock_.SteadyMs();
  next_ms_ = now_ms + (made.ok() ? options_.every_ms : std::min(options_.every_ms, kBackupRetryMs));
  if (made.ok()) {
    const double seconds = static_cast<double>(end_ms - now_ms) / 1000;
    metrics_.BackupMade(begun, made->bytes, seconds);
    Log(LogLevel::kInfo, absl::StrCat("backup ", made->id, " in ", options_.directory, ": ",
                                      made->bytes, " bytes, ", seconds, " s"));
  } else {
    metrics_.BackupFailed();
    Log(LogLevel::kError, absl::StrCat("no backup: ", made.status().message()));
  }
  if (!request.has_value()) return;
  answered_ = request;
  const auto result =
      made.ok() ? absl::StatusOr<uint32_t>(made->id) : absl::StatusOr<uint32_t>(made.status());
  if (const absl::Status answered = AnswerBackupRequest(options_.directory, *request, result);
      !answered.ok()) {
    Log(LogLevel::kError,
        absl::StrCat("a request for a backup is not answered: ", answered.message()));
  }
}

}  // namespace nibble
