#include "worker/link/waiting_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/errno_error.h"

namespace nibble {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

// A rank that is killed between two stores leaves a partial name, which only people read.
struct WaitingPage::Page {
  static constexpr size_t kNameBytes = 32;
  std::atomic<uint64_t> number;  // of the operation; 0: none
  std::atomic<char> name[kNameBytes];
  std::atomic<uint32_t> asked;     // 1: to give up
  std::atomic<uint32_t> gives_up;  // 1: the rank's answer
};

absl::StatusOr<std::unique_ptr<WaitingPage>> WaitingPage::Map(int descriptor) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  void* const page = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (page == MAP_FAILED) return ErrnoError(errno, "mapping a rank's page");
  return std::unique_ptr<WaitingPage>(new WaitingPage(static_cast<Page*>(page)));
}

absl::StatusOr<std::unique_ptr<WaitingPage>> WaitingPage::Create(OwnedDescriptor& descriptor) {
  OwnedDescriptor memory(memfd_create("nibble-page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0 || ftruncate(memory.get(), sizeof(Page)) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoError(errno, "making a rank's page");
  }
  absl::StatusOr<std::unique_ptr<WaitingPage>> page = Map(memory.get());
  if (page.ok()) descriptor = std::move(memory);
  return page;
}

absl::StatusOr<std::unique_ptr<WaitingPage>> WaitingPage::Adopt(const OwnedDescriptor& descriptor) {
  // Reading past the end of a file that shrinks would kill this process.
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  struct stat info;
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(descriptor.get(), &info) != 0 ||
      info.st_size != sizeof(Page)) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello.page: not sealed memory of ", sizeof(Page), " bytes"));
  }
  return Map(descriptor.get());
}

WaitingPage::~WaitingPage() { munmap(page_, sizeof(Page)); }

void WaitingPage::Enter(const char* operation, uint64_t number) {
  const size_t size = std::min(std::strlen(operation), Page::kNameBytes - 1);
  for (size_t i = 0; i < Page::kNameBytes; ++i) {
    page_->name[i].store(i < size ? operation[i] : '\0', std::memory_order_relaxed);
  }
  page_->number.store(number, std::memory_order_release);
}

void WaitingPage::Leave() { page_->number.store(0, std::memory_order_release); }

void WaitingPage::AskToGiveUp() { page_->asked.store(1, std::memory_order_release); }

bool WaitingPage::gives_up() const { return page_->gives_up.load(std::memory_order_acquire) != 0; }

bool WaitingPage::MustGiveUp() {
  if (page_->asked.load(std::memory_order_acquire) == 0) return false;
  page_->gives_up.store(1, std::memory_order_release);
  return true;
}

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
