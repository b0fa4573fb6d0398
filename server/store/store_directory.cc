#include "server/store/store_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/crc32c.h"
#include "common/errno_error.h"
#include "common/rocks/rocks.h"
#include "common/status_macros.h"
#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"
#include "rocksdb/slice.h"
#include "server/store/store.h"
#include "server/store/store_format.h"

namespace nibble::store_files {

using rocksdb::FileOptions;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

absl::StatusOr<std::string> Read(rocksdb::FileSystem& fs, const std::string& path) {
  std::unique_ptr<rocksdb::FSSequentialFile> file;
  const IOStatus opened = fs.NewSequentialFile(path, FileOptions(), &file, nullptr);
  if (opened.IsNotFound() || opened.IsPathNotFound()) {
    return absl::NotFoundError(absl::StrCat("no file ", path));
  }
  if (!opened.ok()) return rocks::ToStatus(opened, absl::StrCat("opening ", path));
  std::string content;
  std::vector<char> buffer(size_t{1} << 16);
  while (true) {
    rocksdb::Slice got;
    const IOStatus read = file->Read(buffer.size(), IOOptions(), &got, buffer.data(), nullptr);
    if (!read.ok()) return rocks::ToStatus(read, absl::StrCat("reading ", path));
    if (got.empty()) return content;
    content.append(got.data(), got.size());
    if (content.size() > kMaxWholeFileBytes) {
      return absl::DataLossError(
          absl::StrCat(path, " has more than ", kMaxWholeFileBytes, " bytes"));
    }
  }
}

absl::Status Replace(rocksdb::FileSystem& fs, const std::string& directory, const std::string& name,
                     absl::string_view content) {
  const std::string path = absl::StrCat(directory, "/", name);
  const std::string temporary = absl::StrCat(path, ".tmp");
  std::unique_ptr<rocksdb::FSWritableFile> file;
  IOStatus status = fs.NewWritableFile(temporary, FileOptions(), &file, nullptr);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("creating ", temporary));
  status = file->Append(rocksdb::Slice(content.data(), content.size()), IOOptions(), nullptr);
  if (status.ok()) status = file->Fsync(IOOptions(), nullptr);
  if (status.ok()) status = file->Close(IOOptions(), nullptr);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("writing ", temporary));
  status = fs.RenameFile(temporary, path, IOOptions(), nullptr);
  if (!status.ok()) {
    return rocks::ToStatus(status, absl::StrCat("renaming ", temporary, " to ", path));
  }
  return SyncDirectory(fs, directory);
}

absl::Status SyncFile(rocksdb::FileSystem& fs, const std::string& path) {
  std::unique_ptr<rocksdb::FSRandomRWFile> file;
  IOStatus status = fs.NewRandomRWFile(path, FileOptions(), &file, nullptr);
  if (status.ok()) status = file->Fsync(IOOptions(), nullptr);
  return rocks::ToStatus(status, absl::StrCat("syncing ", path));
}

absl::Status SyncDirectory(rocksdb::FileSystem& fs, const std::string& path) {
  std::unique_ptr<rocksdb::FSDirectory> directory;
  IOStatus status = fs.NewDirectory(path, IOOptions(), &directory, nullptr);
  if (status.ok()) status = directory->Fsync(IOOptions(), nullptr);
  return rocks::ToStatus(status, absl::StrCat("syncing directory ", path));
}

absl::Status CreateDirectory(rocksdb::FileSystem& fs, const std::string& path) {
  const IOStatus status = fs.CreateDirIfMissing(path, IOOptions(), nullptr);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("creating directory ", path));
  const std::string above = std::filesystem::path(path).lexically_normal().parent_path().string();
  return SyncDirectory(fs, above.empty() ? "." : above);
}

absl::StatusOr<std::vector<std::string>> List(rocksdb::FileSystem& fs, const std::string& path) {
  std::vector<std::string> names;
  const IOStatus status = fs.GetChildren(path, IOOptions(), &names, nullptr);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("reading directory ", path));
  std::erase_if(names, [](const std::string& name) { return name == "." || name == ".."; });
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<uint64_t> FreeBytes(rocksdb::FileSystem& fs, const std::string& path) {
  uint64_t free = 0;
  const IOStatus status = fs.GetFreeSpace(path, IOOptions(), &free, nullptr);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("free space of ", path));
  return free;
}

}  // namespace nibble::store_files

namespace nibble::store_reserve {

absl::StatusOr<bool> Keep(rocksdb::FileSystem& fs, const std::string& directory, uint64_t bytes) {
  const std::string path = absl::StrCat(directory, "/", kReserveName);
  struct stat there = {};
  const bool exists = stat(path.c_str(), &there) == 0;
  if (exists && static_cast<uint64_t>(there.st_size) >= bytes) return true;
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t free, store_files::FreeBytes(fs, directory));
  if (free / 2 < bytes) return false;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  const int error = fd < 0 ? errno : posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (fd >= 0) (void)close(fd);
  if (error == 0) return true;
  (void)unlink(path.c_str());
  const absl::Status status = ErrnoError(error, "allocating", path);
  // Such as by a quota, which the free space does not show.
  if (absl::IsResourceExhausted(status)) return false;
  return status;
}

absl::StatusOr<bool> Release(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kReserveName);
  if (unlink(path.c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  return ErrnoError(errno, "removing", path);
}

}  // namespace nibble::store_reserve

namespace nibble {
namespace {

constexpr absl::string_view kHead = "nibble coordinator store\nversion ";
constexpr absl::string_view kCluster = "\ncluster ";

}  // namespace

std::string EncodeStoreMarker(absl::string_view cluster) {
  const std::string text = absl::StrCat(kHead, store_format::kVersion, kCluster, cluster, "\n");
  const uint32_t crc = Crc32c(text);
  return absl::StrFormat("%scrc32c %08x\n", text, crc);
}

absl::StatusOr<std::string> ParseStoreMarker(absl::string_view content, absl::string_view path) {
  absl::string_view rest = content;
  int version = 0;
  if (!absl::ConsumePrefix(&rest, kHead) ||
      !absl::SimpleAtoi(rest.substr(0, rest.find('\n')), &version)) {
    return absl::DataLossError(absl::StrCat(path, " is not the marker of a coordinator's store"));
  }
  // Checked before the rest, which a newer version may write differently.
  if (version > store_format::kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": the store has format version ",
                                                      version, ", this program knows up to ",
                                                      store_format::kVersion));
  }
  rest.remove_prefix(std::min(rest.find('\n'), rest.size()));
  if (absl::ConsumePrefix(&rest, kCluster)) {
    const std::string cluster(rest.substr(0, rest.find('\n')));
    if (CheckClusterName(cluster).ok() && content == EncodeStoreMarker(cluster)) return cluster;
  }
  return absl::DataLossError(absl::StrCat(path, " is damaged: its checksum does not match"));
}

absl::Status CheckSameCluster(absl::string_view path, absl::string_view stored,
                              absl::string_view wanted) {
  if (stored == wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the store ", path, " belongs to cluster \"",
                                                    stored, "\", not to \"", wanted, "\""));
}

absl::Status StoreGone(const std::string& directory, const std::string& path,
                       const std::string& how) {
  return absl::NotFoundError(absl::StrCat(
      "the store directory ", directory, " was removed or replaced while it was open: ", path, " ",
      how,
      "; changes are refused. Put the directory back, or a backup of it, and start the "
      "coordinator again (with --restored where it is a backup)"));
}

absl::StatusOr<std::unique_ptr<StorePlace>> StorePlace::Watch(
    const std::string& directory, const std::vector<std::string>& names) {
  std::unique_ptr<StorePlace> place(new StorePlace(directory));
  std::vector<std::string> paths = {directory};
  for (const std::string& name : names) paths.push_back(absl::StrCat(directory, "/", name));
  for (const std::string& path : paths) {
    const int fd = open(path.c_str(), O_PATH | O_CLOEXEC);
    if (fd < 0) return ErrnoError(errno, "opening", path);
    place->watched_.emplace_back(path, fd);
  }
  return place;
}

StorePlace::~StorePlace() {
  for (const auto& [path, fd] : watched_) (void)close(fd);
}

absl::Status StorePlace::Check() const {
  for (const auto& [path, fd] : watched_) {
    struct stat opened = {};
    struct stat named = {};
    if (fstat(fd, &opened) == 0 && opened.st_nlink == 0) {
      return StoreGone(directory_, path, "is removed");
    }
    if (stat(path.c_str(), &named) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return StoreGone(directory_, path, "is missing");
      continue;
    }
    if (named.st_ino != opened.st_ino || named.st_dev != opened.st_dev) {
      return StoreGone(directory_, path, "is now another file");
    }
  }
  return absl::OkStatus();
}

namespace {

using store_format::Table;

// Each slot is in its own block, so that a torn write damages one slot only.
constexpr size_t kSlotStride = 4096;
constexpr int kSlots = 2;

// A sealed empty payload (store_format.h): CRC-32C and number.
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
  NIBBLE_ASSIGN_OR_RETURN(const std::string content, store_files::Read(fs, path));
  Slots slots;
  for (size_t i = 0; i < kSlots; ++i) {
    if (content.size() < i * kSlotStride + kSlotBytes) continue;
    slots.sequence[i] = ParseSlot(absl::string_view(content).substr(i * kSlotStride, kSlotBytes));
  }
  if (slots.sequence[1] > slots.sequence[0]) slots.newest = 1;  // nullopt is less than any number
  if (!slots.sequence[slots.newest].has_value()) {
    return absl::DataLossError(
        absl::StrCat(path, " is damaged: neither of its two slots passes its checksum"));
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
  NIBBLE_ASSIGN_OR_RETURN(const Slots slots, ReadSlots(fs, directory));
  return *slots.sequence[slots.newest];
}

absl::StatusOr<std::unique_ptr<AcknowledgedMark>> AcknowledgedMark::Open(
    rocksdb::FileSystem& fs, const std::string& directory, uint64_t sequence) {
  NIBBLE_ASSIGN_OR_RETURN(const Slots slots, ReadSlots(fs, directory));
  const std::string path = absl::StrCat(directory, "/", kMarkName);
  std::unique_ptr<rocksdb::FSRandomRWFile> file;
  const rocksdb::IOStatus status = fs.NewRandomRWFile(path, rocksdb::FileOptions(), &file, nullptr);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("opening ", path));
  // Writes the older slot first: until that is durable, the newer may be the only intact one.
  std::unique_ptr<AcknowledgedMark> mark(
      new AcknowledgedMark(std::move(file), path, 1 - slots.newest));
  NIBBLE_RETURN_IF_ERROR(mark->Finish(sequence));
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
  NIBBLE_RETURN_IF_ERROR(WriteSlot(sequence));
  return ++unsynced_ < kMarksPerSync ? absl::OkStatus() : SyncAndSwitch();
}

absl::Status AcknowledgedMark::Finish(uint64_t sequence) {
  for (int i = 0; i < kSlots; ++i) {
    NIBBLE_RETURN_IF_ERROR(WriteSlot(sequence));
    NIBBLE_RETURN_IF_ERROR(SyncAndSwitch());
  }
  return absl::OkStatus();
}

}  // namespace nibble
