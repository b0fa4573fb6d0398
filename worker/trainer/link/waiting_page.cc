#include "worker/trainer/link/waiting_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace nibble {

// A rank that is killed between two stores leaves a name that is not whole: it is for people.
struct WaitingPage::Page {
  static constexpr size_t kNameBytes = 32;
  std::atomic<uint64_t> number;  // of the operation; 0: in none
  std::atomic<char> name[kNameBytes];
};

std::string WaitingPage::PathOf(const std::string& link_address, int32_t rank) {
  return absl::StrCat(link_address, ".", rank);
}

absl::StatusOr<std::unique_ptr<WaitingPage>> WaitingPage::Map(const std::string& path, int flags) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  const int file = open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0 && errno == ENOENT) {
    return absl::NotFoundError(absl::StrCat("there is no ", path));
  }
  if (file < 0) {
    return absl::UnavailableError(absl::StrCat("opening ", path, ": ", std::strerror(errno)));
  }
  void* page = MAP_FAILED;
  if (ftruncate(file, sizeof(Page)) == 0) {
    page = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  const int error = errno;
  close(file);
  if (page == MAP_FAILED) {
    return absl::UnavailableError(absl::StrCat("mapping ", path, ": ", std::strerror(error)));
  }
  return std::unique_ptr<WaitingPage>(new WaitingPage(path, static_cast<Page*>(page)));
}

absl::StatusOr<std::unique_ptr<WaitingPage>> WaitingPage::Create(const std::string& path) {
  return Map(path, O_CREAT | O_TRUNC);
}

absl::StatusOr<std::unique_ptr<WaitingPage>> WaitingPage::Open(const std::string& path) {
  return Map(path, 0);
}

WaitingPage::~WaitingPage() {
  munmap(page_, sizeof(Page));
  (void)unlink(path_.c_str());  // the other side may have
}

void WaitingPage::Enter(const char* operation, uint64_t number) {
  const size_t size = std::min(std::strlen(operation), Page::kNameBytes - 1);
  for (size_t i = 0; i < Page::kNameBytes; ++i) {
    page_->name[i].store(i < size ? operation[i] : '\0', std::memory_order_relaxed);
  }
  page_->number.store(number, std::memory_order_release);
}

void WaitingPage::Leave() { page_->number.store(0, std::memory_order_release); }

std::string WaitingPage::Read() const {
  const uint64_t number = page_->number.load(std::memory_order_acquire);
  if (number == 0) return "";
  std::string name;
  for (size_t i = 0; i + 1 < Page::kNameBytes; ++i) {
    const char c = page_->name[i].load(std::memory_order_relaxed);
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) break;
    name += c;
  }
  return absl::StrCat(name, " #", number);
}

}  // namespace nibble
