#include "worker/trainer/model/region.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {

namespace {

// The base of placeholder addresses while measuring: not null, and access faults.
constexpr uintptr_t kNowhere = 4096;

}  // namespace

absl::StatusOr<Buffer> Region::Allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  const size_t begin = used_;
  used_ += (bytes + kAlign - 1) / kAlign * kAlign;
  peak_ = std::max(peak_, used_);
  if (!committed_) return Buffer(this, reinterpret_cast<void*>(kNowhere + begin), bytes);
  if (used_ > memory_.bytes()) {
    return absl::InternalError(
        absl::StrCat("region: ", used_, " bytes requested, ", memory_.bytes(), " were planned"));
  }
  return Buffer(this, memory_.data<char>() + begin, bytes);
}

absl::Status Region::CopyIn(void* device, const void* host, size_t bytes) {
  return parent_.CopyIn(device, host, bytes);
}

absl::Status Region::CopyOut(void* host, const void* device, size_t bytes) {
  return parent_.CopyOut(host, device, bytes);
}

absl::Status Region::Commit() {
  NIBBLE_ASSIGN_OR_RETURN(Buffer memory, parent_.Allocate(peak_));
  memory_ = std::move(memory);
  committed_ = true;
  used_ = 0;
  return absl::OkStatus();
}

void Region::Clear() {
  { const Buffer freed = std::move(memory_); }
  committed_ = false;
  used_ = peak_ = 0;
}

}  // namespace nibble
