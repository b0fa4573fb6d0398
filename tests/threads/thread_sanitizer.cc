// Tells the thread sanitizer the order inside Debian's libraries, which are built without it.
//
// - What gRPC hands from thread to thread is ordered by atomics and by absl::Mutex, which the
//   sanitizer does not see here, so that all of it would be reported as a race. A program's
//   definitions come before those of shared libraries: gRPC calls the functions below, each one
//   calls the library's and tells the sanitizer. They are all locking functions that gRPC imports,
//   and those that give an operation to the core (release) and take its end (acquire).
// - Accesses of the libraries themselves, in functions such as memcpy and free, are not judged.
// - Neither are the first and last accesses to a call's own objects, which gRPC's header templates
//   define here and whose threads gRPC orders by atomics.
//
// Linked with --config=tsan (.bazelrc) into every program; otherwise empty.
#ifdef __SANITIZE_THREAD__

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

extern "C" const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }

extern "C" const char* __tsan_default_suppressions() {
  return "race:^grpc::internal::InterceptorBatchMethodsImpl::InterceptorBatchMethodsImpl\n"
         "race:::ServerCallback*Impl::~ServerCallback*Impl\n"
         "race:^grpc::Server*Reactor::~Server*Reactor\n"
         "race:^grpc::ServerContextBase::~ServerContextBase\n";
}

namespace {

// The function that one of this file replaces. `name` as the library exports it.
template <class Function>
Function* Replaced(const char* name) {
  void* const found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) {
    std::fprintf(stderr, "thread_sanitizer.cc: no library has %s: another version?\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static auto* const replaced = Replaced<void(Mutex*)>("_ZN4absl7debian35Mutex4LockEv");
  replaced(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static auto* const replaced = Replaced<void(Mutex*)>("_ZN4absl7debian35Mutex6UnlockEv");
  __tsan_release(this);
  replaced(this);
}

bool Mutex::TryLock() {
  static auto* const replaced = Replaced<bool(Mutex*)>("_ZN4absl7debian35Mutex7TryLockEv");
  const bool locked = replaced(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const replaced =
      Replaced<void(CondVar*, Mutex*)>("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  replaced(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const replaced = Replaced<bool(CondVar*, Mutex*, Duration)>(
      "_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  __tsan_release(mutex);
  const bool expired = replaced(this, mutex, timeout);
  __tsan_acquire(mutex);
  return expired;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const replaced = Replaced<bool(CondVar*, Mutex*, Time)>(
      "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  const bool expired = replaced(this, mutex, deadline);
  __tsan_acquire(mutex);
  return expired;
}

ABSL_NAMESPACE_END
}  // namespace absl

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* operations, size_t number,
                                      void* tag, void* reserved) {
  static auto* const replaced = Replaced<decltype(grpc_call_start_batch)>("grpc_call_start_batch");
  __tsan_release(tag);
  return replaced(call, operations, number, tag, reserved);
}

grpc_call_error grpc_server_request_call(grpc_server* server, grpc_call** call,
                                         grpc_call_details* details, grpc_metadata_array* metadata,
                                         grpc_completion_queue* call_queue,
                                         grpc_completion_queue* queue, void* tag) {
  static auto* const replaced =
      Replaced<decltype(grpc_server_request_call)>("grpc_server_request_call");
  __tsan_release(tag);
  return replaced(server, call, details, metadata, call_queue, queue, tag);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline,
                                      void* reserved) {
  static auto* const replaced =
      Replaced<decltype(grpc_completion_queue_next)>("grpc_completion_queue_next");
  const grpc_event event = replaced(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                                       gpr_timespec deadline, void* reserved) {
  static auto* const replaced =
      Replaced<decltype(grpc_completion_queue_pluck)>("grpc_completion_queue_pluck");
  const grpc_event event = replaced(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

}  // extern "C"

#endif  // __SANITIZE_THREAD__
