#include "kernels/late/late_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errno_error.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr size_t kPage = 4096;

size_t WholePages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

uintptr_t AddressOf(const void* data) { return reinterpret_cast<uintptr_t>(data); }

}  // namespace

absl::StatusOr<std::unique_ptr<LateMemory>> LateMemory::Create(
    size_t bytes, std::function<absl::Status()> drain) {
  const size_t size = WholePages(bytes);
  void* base = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return ErrnoError(errno, absl::StrCat("mmap of ", size, " bytes"));
  return std::unique_ptr<LateMemory>(
      new LateMemory(static_cast<char*>(base), size, std::move(drain)));
}

LateMemory::~LateMemory() { munmap(base_, bytes_); }

void LateMemory::Protect(bool open) {
  if (open == open_) return;
  open_ = open;
  if (top_ > 0) mprotect(base_, top_, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

absl::StatusOr<Buffer> LateMemory::Allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  const size_t size = WholePages(bytes);
  size_t at = 0;  // the first gap that is large enough
  for (const auto& [begin, taken] : buffers_) {
    if (begin - at >= size) break;
    at = begin + taken;
  }
  if (size > bytes_ - at) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "late device memory: no ", bytes, " bytes left beside the ", used_, " in use of ", bytes_));
  }
  const bool was_open = open_;
  Close();
  buffers_[at] = size;
  used_ += size;
  top_ = std::max(top_, at + size);
  Open();
  std::memset(base_ + at, 0xff, size);
  if (!was_open) Close();
  return Buffer(this, base_ + at, bytes);
}

void LateMemory::Free(void* data) {
  // An error of the queue is reported by the next wait for it.
  (void)drain_();
  const auto found = buffers_.find(static_cast<size_t>(static_cast<char*>(data) - base_));
  used_ -= found->second;
  madvise(data, found->second, MADV_DONTNEED);
  buffers_.erase(found);
  ++frees_;
}

bool LateMemory::Contains(const void* data, size_t bytes) const {
  const auto* begin = static_cast<const char*>(data);
  if (begin < base_ || begin >= base_ + bytes_) return false;
  const auto offset = static_cast<size_t>(begin - base_);
  auto after = buffers_.upper_bound(offset);
  if (after == buffers_.begin()) return false;
  const auto& [at, size] = *std::prev(after);
  return offset + bytes <= at + size;
}

absl::Status LateMemory::CopyIn(void* device, const void* host, size_t bytes) {
  NIBBLE_RETURN_IF_ERROR(drain_());
  if (bytes == 0) return absl::OkStatus();
  Open();
  std::memcpy(device, host, bytes);
  Close();
  return absl::OkStatus();
}

absl::Status LateMemory::CopyOut(void* host, const void* device, size_t bytes) {
  NIBBLE_RETURN_IF_ERROR(drain_());
  if (bytes == 0) return absl::OkStatus();
  Open();
  std::memcpy(host, device, bytes);
  Close();
  return absl::OkStatus();
}

absl::StatusOr<Buffer> PinnedMemory::Allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  const size_t size = WholePages(bytes);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return ErrnoError(errno, absl::StrCat("mmap of ", size, " bytes"));
  ranges_[AddressOf(data)] = {.bytes = size, .own = true};
  return Buffer(this, data, bytes);
}

void PinnedMemory::Free(void* data) {
  (void)drain_();
  const auto found = ranges_.find(AddressOf(data));
  munmap(data, found->second.bytes);
  ranges_.erase(found);
}

absl::Status PinnedMemory::CopyIn(void* device, const void* host, size_t bytes) {
  std::memcpy(device, host, bytes);
  return absl::OkStatus();
}

absl::Status PinnedMemory::CopyOut(void* host, const void* device, size_t bytes) {
  std::memcpy(host, device, bytes);
  return absl::OkStatus();
}

absl::Status PinnedMemory::Pin(void* host, size_t bytes) {
  if (AddressOf(host) % kPage != 0 || bytes % kPage != 0 || bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("pin: ", bytes, " bytes at ", AddressOf(host), " are not whole pages"));
  }
  if (!ranges_.try_emplace(AddressOf(host), Range{.bytes = bytes}).second) {
    return absl::AlreadyExistsError(absl::StrCat("pin: ", AddressOf(host), " is pinned"));
  }
  return absl::OkStatus();
}

absl::Status PinnedMemory::Unpin(void* host) {
  NIBBLE_RETURN_IF_ERROR(drain_());
  const auto found = ranges_.find(AddressOf(host));
  if (found == ranges_.end() || found->second.own) {
    return absl::NotFoundError(absl::StrCat("unpin: ", AddressOf(host), " is not pinned"));
  }
  ranges_.erase(found);
  return absl::OkStatus();
}

std::map<uintptr_t, PinnedMemory::Range>::iterator PinnedMemory::Find(const void* host) {
  auto after = ranges_.upper_bound(AddressOf(host));
  return after == ranges_.begin() ? ranges_.end() : std::prev(after);
}

void PinnedMemory::Protect(uintptr_t begin, const Range& range) const {
  if (!range.own) return;
  const int protection = open_ || range.written + range.read == 0 ? PROT_READ | PROT_WRITE
                         : range.written > 0                      ? PROT_NONE
                                                                  : PROT_READ;
  mprotect(reinterpret_cast<void*>(begin), range.bytes, protection);
}

absl::Status PinnedMemory::Lend(const void* host, size_t bytes, bool written) {
  const auto found = Find(host);
  if (found == ranges_.end() || AddressOf(host) + bytes > found->first + found->second.bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("copy: ", bytes, " bytes at ", AddressOf(host), " are not pinned memory"));
  }
  ++(written ? found->second.written : found->second.read);
  Protect(found->first, found->second);
  return absl::OkStatus();
}

void PinnedMemory::Open() {
  if (open_) return;
  open_ = true;
  for (const auto& [begin, range] : ranges_) {
    if (range.written + range.read > 0) Protect(begin, range);
  }
}

void PinnedMemory::Close() {
  if (!open_) return;
  open_ = false;
  for (const auto& [begin, range] : ranges_) {
    if (range.written + range.read > 0) Protect(begin, range);
  }
}

void PinnedMemory::Return(const void* host, bool written) {
  const auto found = Find(host);
  --(written ? found->second.written : found->second.read);
  Protect(found->first, found->second);
}

}  // namespace nibble
