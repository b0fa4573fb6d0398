#include "kernels/cuda/nccl/nccl_communicator.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

using NcclClock = std::chrono::steady_clock;

}  // namespace

void EnqueueWait::Pause() {
  if (++turns_ < kSpins) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

NcclCommunicator::~NcclCommunicator() {
  Abort(absl::CancelledError("the group has been closed"), [] {});
}

absl::Status NcclCommunicator::Connect(const NcclOptions& options) {
  ncclUniqueId id;
  static_assert(sizeof(id) == sizeof(options.id));
  std::memcpy(&id, options.id.data(), sizeof(id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  {
    const MutexLock lock(&mutex_);
    const ncclResult_t result =
        nccl_.CommInitRankConfig(&comm_, options.world, id, options.rank, &config);
    NIBBLE_RETURN_IF_ERROR(ErrorOf("ncclCommInitRankConfig", result));
  }
  const auto deadline = NcclClock::now() + options.connect_timeout;
  while (true) {
    NIBBLE_ASSIGN_OR_RETURN(const ncclResult_t state, State());
    if (state == ncclSuccess) return absl::OkStatus();
    if (options.check) NIBBLE_RETURN_IF_ERROR(options.check());
    if (NcclClock::now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("NCCL did not connect rank ", options.rank,
                                                      " of ", options.world, " within ",
                                                      options.connect_timeout.count(), " ms"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

absl::Status NcclCommunicator::ErrorOf(const char* name, ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  const char* const last = nccl_.GetLastError(comm_);
  return NcclStatus(nccl_, result, name, last == nullptr ? "" : last);
}

absl::StatusOr<ncclResult_t> NcclCommunicator::State() {
  const MutexLock lock(&mutex_);
  if (comm_ == nullptr) return Ended();
  ncclResult_t state = ncclSuccess;
  NIBBLE_RETURN_IF_ERROR(ErrorOf("ncclCommGetAsyncError", nccl_.CommGetAsyncError(comm_, &state)));
  NIBBLE_RETURN_IF_ERROR(ErrorOf("communicator", state));
  return state;
}

// A call of a communicator that does not block returns while a thread of NCCL's still enqueues the
// work, which takes some ten microseconds, or seconds where connections are made.
absl::Status NcclCommunicator::Call(const char* name,
                                    absl::FunctionRef<ncclResult_t(ncclComm_t)> calls) {
  {
    const MutexLock lock(&mutex_);
    if (comm_ == nullptr) return Ended();
    NIBBLE_RETURN_IF_ERROR(ErrorOf("ncclGroupStart", nccl_.GroupStart()));
    const ncclResult_t called = calls(comm_);
    const ncclResult_t ended = nccl_.GroupEnd();
    NIBBLE_RETURN_IF_ERROR(ErrorOf(name, called));
    NIBBLE_RETURN_IF_ERROR(ErrorOf(name, ended));
    if (ended == ncclSuccess) return absl::OkStatus();
  }
  EnqueueWait wait;
  while (true) {
    NIBBLE_ASSIGN_OR_RETURN(const ncclResult_t state, State());
    if (state == ncclSuccess) return absl::OkStatus();
    wait.Pause();
  }
}

void NcclCommunicator::Abort(const absl::Status& why, absl::FunctionRef<void()> first) {
  const MutexLock lock(&mutex_);
  if (aborted_.ok()) aborted_ = why;
  if (comm_ == nullptr) return;
  first();
  (void)nccl_.CommAbort(comm_);
  comm_ = nullptr;
}

}  // namespace nibble
