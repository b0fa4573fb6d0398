// In which collective a rank stands, written where its daemon can read it while the rank can say
// nothing: a page of a file that both have mapped. A rank that hangs with the others waiting for it
// is told from those by it.
//
// Entering and leaving cost a few stores and no call of the system.
//
// Ownership: owns the mapping; the rank's page removes its file when it is destroyed, and the
// daemon's if the rank could not. Thread-safety: one thread writes; any may read.
#ifndef NIBBLE_WORKER_TRAINER_LINK_WAITING_PAGE_H_
#define NIBBLE_WORKER_TRAINER_LINK_WAITING_PAGE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace nibble {

class WaitingPage {
 public:
  // Beside the link's socket.
  static std::string PathOf(const std::string& link_address, int32_t rank);

  // The rank's: makes the file anew. Unavailable naming the path.
  static absl::StatusOr<std::unique_ptr<WaitingPage>> Create(const std::string& path);
  // The daemon's. NotFound where the rank has made none.
  static absl::StatusOr<std::unique_ptr<WaitingPage>> Open(const std::string& path);
  ~WaitingPage();
  WaitingPage(const WaitingPage&) = delete;
  WaitingPage& operator=(const WaitingPage&) = delete;

  // `operation`: a name that lives as long as the program; of more than 31 bytes the first.
  void Enter(const char* operation, uint64_t number);
  void Leave();
  // "AllGather #12", or empty: in none.
  std::string Read() const;

 private:
  struct Page;
  WaitingPage(std::string path, Page* page) : path_(std::move(path)), page_(page) {}
  static absl::StatusOr<std::unique_ptr<WaitingPage>> Map(const std::string& path, int flags);

  const std::string path_;
  Page* const page_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_LINK_WAITING_PAGE_H_
