// A page of memory, shared by a rank and its daemon, that names the collective in which the rank
// waits. By it the daemon distinguishes the rank that hangs from those that wait for it, also while
// the rank cannot report and after it has died. Entering and leaving cost a few stores and no
// system call.
//
// The memory is an anonymous file (memfd) whose size is sealed; the rank makes it and passes its
// descriptor to the daemon with its greeting.
//
// Ownership: owns the mapping. Thread-safety: one thread writes; any may read.
#ifndef NIBBLE_WORKER_LINK_WAITING_PAGE_H_
#define NIBBLE_WORKER_LINK_WAITING_PAGE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/link/link_socket.h"

namespace nibble {

class WaitingPage {
 public:
  // For the rank. `descriptor` becomes the one to pass on.
  static absl::StatusOr<std::unique_ptr<WaitingPage>> Create(OwnedDescriptor& descriptor);
  // For the daemon. InvalidArgument for memory of another size, or that is not sealed.
  static absl::StatusOr<std::unique_ptr<WaitingPage>> Adopt(const OwnedDescriptor& descriptor);
  ~WaitingPage();
  WaitingPage(const WaitingPage&) = delete;
  WaitingPage& operator=(const WaitingPage&) = delete;

  // `operation`: the collective's name, cut to 31 bytes. `number`: above 0.
  void Enter(const char* operation, uint64_t number);
  void Leave();
  // "AllGather #12"; empty: in no collective.
  std::string Read() const;

 private:
  struct Page;
  explicit WaitingPage(Page* page) : page_(page) {}
  static absl::StatusOr<std::unique_ptr<WaitingPage>> Map(int descriptor);

  Page* const page_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_LINK_WAITING_PAGE_H_
