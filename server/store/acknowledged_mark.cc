#include "server/store/acknowledged_mark.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"
#include "rocksdb/slice.h"
#include "server/store/rocks_glue.h"
#include "server/store/store_files.h"
#include "server/store/store_format.h"

namespace nibble {
namespace {

using store_format::Table;

// Each slot in a block of its own: what tears one does not touch the other.
constexpr size_t kSlotStride = 4096;
constexpr int kSlots = 2;

// The seal of store_format, over no payload: CRC-32C and number.
std::string EncodeSlot(uint64_t sequence) {
  return store_format::Seal(Table::kMeta, kMarkName, sequence, "");
}
const size_t kSlotBytes = EncodeSlot(0).size();

std::optional<uint64_t> ParseSlot(absl::string_view bytes) {
  const auto sealed = store_format::Unseal(Table::kMeta, kMarkName, bytes);
  if (!sealed.ok()) return std::nullopt;
  return sealed->sequence;
}

struct Slots {
  std::optional<uint64_t> sequence[kSlots];
  int newest = 0;
};

absl::StatusOr<Slots> ReadSlots(rocksdb::FileSystem& fs, const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kMarkName);
  const absl::StatusOr<std::string> content = store_files::Read(fs, path);
  if (!content.ok()) return content.status();
  Slots slots;
  for (size_t i = 0; i < kSlots; ++i) {
    if (content->size() < i * kSlotStride + kSlotBytes) continue;
    slots.sequence[i] = ParseSlot(absl::string_view(*content).substr(i * kSlotStride, kSlotBytes));
  }
  if (slots.sequence[1] > slots.sequence[0]) slots.newest = 1;  // none is less than any number
  if (!slots.sequence[slots.newest].has_value()) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: neither of its slots is whole"));
  }
  return slots;
}

}  // namespace

AcknowledgedMark::AcknowledgedMark(std::unique_ptr<rocksdb::FSRandomRWFile> file, std::string path,
                                   int slot)
    : file_(std::move(file)), path_(std::move(path)), slot_(slot) {}

AcknowledgedMark::~AcknowledgedMark() { (void)file_->Close(rocksdb::IOOptions(), nullptr).ok(); }

absl::Status AcknowledgedMark::Create(rocksdb::FileSystem& fs, const std::string& directory,
                                      uint64_t sequence) {
  std::string content(kSlots * kSlotStride, '\0');
  for (size_t i = 0; i < kSlots; ++i) {
    content.replace(i * kSlotStride, kSlotBytes, EncodeSlot(sequence));
  }
  return store_files::Replace(fs, directory, kMarkName, content);
}

absl::StatusOr<uint64_t> AcknowledgedMark::Read(rocksdb::FileSystem& fs,
                                                const std::string& directory) {
  const absl::StatusOr<Slots> slots = ReadSlots(fs, directory);
  if (!slots.ok()) return slots.status();
  return *slots->sequence[slots->newest];
}

absl::StatusOr<std::unique_ptr<AcknowledgedMark>> AcknowledgedMark::Open(
    rocksdb::FileSystem& fs, const std::string& directory, uint64_t sequence) {
  const absl::StatusOr<Slots> slots = ReadSlots(fs, directory);
  if (!slots.ok()) return slots.status();
  const std::string path = absl::StrCat(directory, "/", kMarkName);
  std::unique_ptr<rocksdb::FSRandomRWFile> file;
  const rocksdb::IOStatus status = fs.NewRandomRWFile(path, rocksdb::FileOptions(), &file, nullptr);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("opening ", path));
  // The older slot first: the newer one may be the only whole one until this is durable.
  std::unique_ptr<AcknowledgedMark> mark(
      new AcknowledgedMark(std::move(file), path, 1 - slots->newest));
  if (absl::Status s = mark->Finish(sequence); !s.ok()) return s;
  return mark;
}

absl::Status AcknowledgedMark::WriteSlot(uint64_t sequence) {
  const std::string bytes = EncodeSlot(sequence);
  return rocks::ToStatus(file_->Write(static_cast<uint64_t>(slot_) * kSlotStride,
                                      rocksdb::Slice(bytes), rocksdb::IOOptions(), nullptr),
                         absl::StrCat("writing ", path_));
}

absl::Status AcknowledgedMark::SyncAndSwitch() {
  const rocksdb::IOStatus status = file_->Fsync(rocksdb::IOOptions(), nullptr);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("syncing ", path_));
  slot_ = 1 - slot_;
  unsynced_ = 0;
  return absl::OkStatus();
}

absl::Status AcknowledgedMark::Advance(uint64_t sequence) {
  if (absl::Status s = WriteSlot(sequence); !s.ok()) return s;
  return ++unsynced_ < kMarksPerSync ? absl::OkStatus() : SyncAndSwitch();
}

absl::Status AcknowledgedMark::Finish(uint64_t sequence) {
  for (int i = 0; i < kSlots; ++i) {
    if (absl::Status s = WriteSlot(sequence); !s.ok()) return s;
    if (absl::Status s = SyncAndSwitch(); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace nibble
