// One communicator of NCCL's, without calls that wait for a peer: it can be ended at any time, from
// any thread, and then every call returns why.
//
// Ownership: borrows the library. Ends the communicator in the destructor if nobody has. NCCL's
// orderly end waits for the peers, which may be gone, so it is always aborted.
// Thread-safety: Connect() and Call() from one thread; the rest from any thread.
#ifndef NIBBLE_KERNELS_CUDA_NCCL_NCCL_COMMUNICATOR_H_
#define NIBBLE_KERNELS_CUDA_NCCL_NCCL_COMMUNICATOR_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "kernels/cuda/nccl/nccl_group.h"
#include "kernels/cuda/nccl/nccl_library.h"

namespace nibble {

// Waits for something that mostly takes some ten microseconds, and sometimes seconds.
class EnqueueWait {
 public:
  void Pause();

 private:
  static constexpr int kSpins = 2000;
  int turns_ = 0;
};

class NcclCommunicator {
 public:
  explicit NcclCommunicator(const NcclLibrary& library) : nccl_(library) {}
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // On the calling thread's device. DeadlineExceeded after options.connect_timeout.
  absl::Status Connect(const NcclOptions& options);
  // Makes `calls` in one group of NCCL's, and waits until they are enqueued.
  absl::Status Call(const char* name, absl::FunctionRef<ncclResult_t(ncclComm_t)> calls);
  // Of its last call: ncclInProgress while that is still being enqueued; an error that NCCL has
  // noticed; or why it was ended.
  absl::StatusOr<ncclResult_t> State();
  // The first time: runs `first`, while no call can be made, and then ends what is under way.
  void Abort(const absl::Status& why, absl::FunctionRef<void()> first);

 private:
  // Why there is no communicator.
  absl::Status Ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return aborted_.ok() ? absl::FailedPreconditionError("the group is not connected") : aborted_;
  }
  absl::Status ErrorOf(const char* name, ncclResult_t result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const NcclLibrary& nccl_;
  // Held during NCCL's calls, none of which waits for a peer.
  Mutex mutex_;
  ncclComm_t comm_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null: not connected, or aborted
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_NCCL_NCCL_COMMUNICATOR_H_
