#include "worker/checkpoint/snapshot_area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errno_error.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr int64_t kPage = 4096;
constexpr uint64_t kAreaMagic = 0x31414552414b424e;  // "NBKAREA1"
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct AreaHead {
  uint64_t magic;
  int64_t slices_bytes;
};

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

struct SnapshotArea::Layout {
  int64_t slices_bytes = 0;
  int64_t note_at = 0;
  int64_t buffers_at = 0;
  int64_t total = 0;

  static absl::StatusOr<Layout> Of(int64_t slices_bytes, absl::Span<const TensorSlice> slices) {
    Layout layout;
    layout.slices_bytes = slices_bytes;
    layout.note_at = RoundUp(kPage + slices_bytes, kPage);
    layout.buffers_at = layout.note_at + RoundUp(kMaxNoteBytes, kPage);
    layout.total = layout.buffers_at;
    for (const TensorSlice& slice : slices) {
      NIBBLE_RETURN_IF_ERROR(CheckSlice(slice));
      const int64_t bytes = RoundUp(SliceBytes(slice), kBufferAlign);
      if (bytes > std::numeric_limits<int64_t>::max() / 2 - layout.total) {
        return absl::InvalidArgumentError("the slices together are larger than any memory");
      }
      layout.total += bytes;
    }
    layout.total = RoundUp(layout.total, kPage);
    return layout;
  }
};

SnapshotArea::SnapshotArea(int descriptor, std::byte* memory, const Layout& layout,
                           std::vector<TensorSlice> slices)
    : descriptor_(descriptor),
      memory_(memory),
      mapped_(layout.total),
      note_at_(layout.note_at),
      slices_(std::move(slices)) {
  int64_t at = layout.buffers_at;
  for (const TensorSlice& slice : slices_) {
    const int64_t size = SliceBytes(slice);
    buffers_.emplace_back(memory_ + at, size);
    at += RoundUp(size, kBufferAlign);
    bytes_ += size;
  }
}

SnapshotArea::~SnapshotArea() {
  munmap(memory_, static_cast<size_t>(mapped_));
  close(descriptor_);
}

absl::StatusOr<std::unique_ptr<SnapshotArea>> SnapshotArea::Create(
    std::vector<TensorSlice> slices) {
  const std::string encoded = EncodeSlices(slices);
  const auto slices_bytes = static_cast<int64_t>(encoded.size());
  if (slices_bytes > kMaxSlicesBytes) {
    return absl::InvalidArgumentError(absl::StrCat(slices.size(), " slices take ", slices_bytes,
                                                   " bytes to describe, more than ",
                                                   kMaxSlicesBytes));
  }
  NIBBLE_ASSIGN_OR_RETURN(const Layout layout, Layout::Of(slices_bytes, slices));
  const int file = memfd_create("nibble-snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return ErrnoError(errno, "making memory for checkpoints");
  const std::string doing = absl::StrCat("taking ", layout.total, " bytes for checkpoints");
  void* memory = MAP_FAILED;
  int error = posix_fallocate(file, 0, layout.total);
  if (error == 0 && fcntl(file, F_ADD_SEALS, kSeals) != 0) error = errno;
  if (error == 0) {
    memory = mmap(nullptr, static_cast<size_t>(layout.total), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_POPULATE, file, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  if (error != 0) {
    close(file);
    if (error == ENOMEM) return absl::ResourceExhaustedError(absl::StrCat(doing, ": no memory"));
    return ErrnoError(error, doing);
  }
  auto* bytes = static_cast<std::byte*>(memory);
  const AreaHead head = {.magic = kAreaMagic, .slices_bytes = slices_bytes};
  std::memcpy(bytes, &head, sizeof head);
  std::memcpy(bytes + kPage, encoded.data(), encoded.size());
  return std::unique_ptr<SnapshotArea>(new SnapshotArea(file, bytes, layout, std::move(slices)));
}

absl::StatusOr<std::unique_ptr<SnapshotArea>> SnapshotArea::Adopt(int descriptor) {
  const auto refuse = [&](absl::Status status) {
    close(descriptor);
    return status;
  };
  // Without these seals the file could shrink, and reading past its end kills the process.
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return refuse(absl::InvalidArgumentError("a rank's memory for checkpoints is not sealed"));
  }
  struct stat info;
  if (fstat(descriptor, &info) != 0)
    return refuse(ErrnoError(errno, "reading the size of a rank's memory"));
  const auto size = static_cast<int64_t>(info.st_size);
  if (size < kPage) {
    return refuse(absl::InvalidArgumentError(
        absl::StrCat("a rank's memory for checkpoints has ", size, " bytes")));
  }
  void* memory =
      mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return refuse(ErrnoError(errno, "mapping a rank's memory"));
  const auto unmap = [&](absl::Status status) {
    munmap(memory, static_cast<size_t>(size));
    return refuse(std::move(status));
  };
  AreaHead head;
  std::memcpy(&head, memory, sizeof head);
  if (head.magic != kAreaMagic || head.slices_bytes < 0 || head.slices_bytes > kMaxSlicesBytes ||
      head.slices_bytes > size - kPage) {
    return unmap(absl::InvalidArgumentError("a rank's memory for checkpoints has a wrong head"));
  }
  // Copy before checking: the rank could change shared memory in between.
  const std::string encoded(static_cast<const char*>(memory) + kPage,
                            static_cast<size_t>(head.slices_bytes));
  absl::StatusOr<std::vector<TensorSlice>> slices = DecodeSlices(encoded);
  if (!slices.ok()) return unmap(slices.status());
  const absl::StatusOr<Layout> layout = Layout::Of(head.slices_bytes, *slices);
  if (!layout.ok()) return unmap(layout.status());
  if (layout->total != size) {
    return unmap(absl::InvalidArgumentError(absl::StrCat(
        "a rank's memory for checkpoints has ", size, " bytes, its slices need ", layout->total)));
  }
  return std::unique_ptr<SnapshotArea>(
      new SnapshotArea(descriptor, static_cast<std::byte*>(memory), *layout, *std::move(slices)));
}

absl::Status SnapshotArea::SetNote(absl::string_view note) {
  if (static_cast<int64_t>(note.size()) > kMaxNoteBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("note: ", note.size(), " bytes, more than ", kMaxNoteBytes));
  }
  std::memcpy(memory_ + note_at_, note.data(), note.size());
  return absl::OkStatus();
}

std::string SnapshotArea::Note(int64_t bytes) const {
  return std::string(reinterpret_cast<const char*>(memory_ + note_at_), static_cast<size_t>(bytes));
}

}  // namespace nibble
