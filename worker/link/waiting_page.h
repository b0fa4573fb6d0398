// A page of memory, shared by a rank and its daemon, that names the collective in which the rank
// waits, also while the rank cannot report and after it has died. Entering and leaving cost a few
// stores and no system call.
//
// Over it the daemon also asks a rank to give up its run while it waits in a collective and reads
// no messages. Ranks that wait for one that hangs do so and say so here; the one that hangs cannot.
//
// The memory is an anonymous file (memfd) whose size is sealed; the rank makes it and passes its
// descriptor to the daemon with its greeting.
//
// Ownership: owns the mapping. Thread-safety: one thread enters and leaves; the other methods from
// any thread.
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

  // For the daemon: asks the rank to give up; for good. Whether the rank has answered.
  void AskToGiveUp();
  bool gives_up() const;
  // For the rank: whether it was asked, which it thereby answers.
  bool MustGiveUp();

 private:
  struct Page;
  explicit WaitingPage(Page* page) : page_(page) {}
  static absl::StatusOr<std::unique_ptr<WaitingPage>> Map(int descriptor);

  Page* const page_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_LINK_WAITING_PAGE_H_
