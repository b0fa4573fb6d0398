#include "common/rocks/rocks.h"

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "common/errno_error.h"
#include "common/files/files.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"
#include "rocksdb/options.h"
#include "rocksdb/slice.h"
#include "rocksdb/status.h"
#include "rocksdb/table.h"

namespace nibble::rocks {

using rocksdb::FileOptions;
using rocksdb::FSRandomRWFile;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

absl::Status ToStatus(const rocksdb::Status& status, absl::string_view doing) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(doing, ": ", status.ToString());
  // RocksDB has a code for ENOSPC; quotas and file size limits show only in its text.
  if (status.IsNoSpace() || absl::StrContains(message, std::strerror(EDQUOT)) ||
      absl::StrContains(message, std::strerror(EFBIG))) {
    return absl::ResourceExhaustedError(message);
  }
  if (status.IsCorruption() || status.IsPathNotFound() || status.IsNotFound() ||
      status.IsInvalidArgument() || status.IsNotSupported()) {
    return absl::DataLossError(message);
  }
  return absl::InternalError(message);
}

IOStatus ToIoStatus(const absl::Status& status) {
  if (status.ok()) return IOStatus::OK();
  const std::string message(status.message());
  return absl::IsResourceExhausted(status) ? IOStatus::NoSpace(message)
                                           : IOStatus::IOError(message);
}

Slice ToSlice(absl::string_view bytes) { return {bytes.data(), bytes.size()}; }

namespace {

class SilentLogger : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// Format and checksum of table files.
constexpr uint32_t kFormatVersion = 5;
constexpr rocksdb::ChecksumType kChecksum = rocksdb::kXXH3;

}  // namespace

rocksdb::Options BaseOptions() {
  rocksdb::Options options;
  options.info_log = std::make_shared<SilentLogger>();
  options.compression = rocksdb::kNoCompression;
  options.avoid_flush_during_shutdown = true;
  options.max_open_files = -1;
  // Each opening starts that many threads for every column family, however few tables there are.
  options.max_file_opening_threads = 1;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

void SetTableFormat(rocksdb::Options& options, rocksdb::BlockBasedTableOptions table) {
  table.checksum = kChecksum;
  table.format_version = kFormatVersion;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
}

namespace {

class UnsyncedFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  UnsyncedFile(std::unique_ptr<FSWritableFile> file, std::string path, DiskFaults* faults)
      : FSWritableFileOwnerWrapper(std::move(file)), path_(std::move(path)), faults_(faults) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    const IOStatus fault = FaultOf(data);
    return fault.ok() ? FSWritableFileOwnerWrapper::Append(data, options, debug) : fault;
  }
  IOStatus Append(const Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& info, IODebugContext* debug) override {
    const IOStatus fault = FaultOf(data);
    return fault.ok() ? FSWritableFileOwnerWrapper::Append(data, options, info, debug) : fault;
  }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Fsync(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

 private:
  IOStatus FaultOf(const Slice& data) {
    if (faults_ == nullptr) return IOStatus::OK();
    const int error = faults_->BeforeWrite(path_, static_cast<int64_t>(data.size()));
    return error == 0 ? IOStatus::OK() : ToIoStatus(ErrnoError(error, "writing", path_));
  }

  const std::string path_;
  DiskFaults* const faults_;
};

class UnsyncedRandomFile : public rocksdb::FSRandomRWFileOwnerWrapper {
 public:
  using FSRandomRWFileOwnerWrapper::FSRandomRWFileOwnerWrapper;
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Fsync(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
};

class UnsyncedDirectory : public rocksdb::FSDirectory {
 public:
  IOStatus Fsync(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
};

class Unsynced : public rocksdb::FileSystemWrapper {
 public:
  explicit Unsynced(DiskFaults* faults)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), faults_(faults) {}

  const char* Name() const override { return "nibble.Unsynced"; }
  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSWritableFile>* result,
                           IODebugContext* debug) override {
    return Wrap(path, FileSystemWrapper::NewWritableFile(path, options, result, debug), result);
  }
  IOStatus ReopenWritableFile(const std::string& path, const FileOptions& options,
                              std::unique_ptr<FSWritableFile>* result,
                              IODebugContext* debug) override {
    return Wrap(path, FileSystemWrapper::ReopenWritableFile(path, options, result, debug), result);
  }
  IOStatus NewRandomRWFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSRandomRWFile>* result,
                           IODebugContext* debug) override {
    const IOStatus status = FileSystemWrapper::NewRandomRWFile(path, options, result, debug);
    if (status.ok()) *result = std::make_unique<UnsyncedRandomFile>(std::move(*result));
    return status;
  }
  IOStatus NewDirectory(const std::string&, const IOOptions&,
                        std::unique_ptr<rocksdb::FSDirectory>* result, IODebugContext*) override {
    *result = std::make_unique<UnsyncedDirectory>();
    return IOStatus::OK();
  }

 private:
  IOStatus Wrap(const std::string& path, const IOStatus& status,
                std::unique_ptr<FSWritableFile>* result) {
    if (status.ok()) {
      *result = std::make_unique<UnsyncedFile>(std::move(*result), path, faults_);
    }
    return status;
  }

  DiskFaults* const faults_;
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> UnsyncedFileSystem(DiskFaults* faults) {
  return std::make_shared<Unsynced>(faults);
}

namespace {

constexpr uint64_t kBlockBasedMagic = 0x88e241b785f4cff7;
constexpr uint64_t kBlockTrailerBytes = 5;

std::optional<uint64_t> TakeVarint(absl::string_view& from) {
  uint64_t number = 0;
  for (int shift = 0; shift <= 63 && !from.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(from.front());
    from.remove_prefix(1);
    number |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return number;
  }
  return std::nullopt;
}

// [1] checksum type; [40] offset and size of the metaindex and of the index, varints, then zeros;
// [4] format version; [8] magic number.
bool IsIntact(absl::string_view footer, uint64_t file_bytes) {
  if (footer.size() != kTableFooterBytes || file_bytes < kTableFooterBytes) return false;
  if (LoadLittle<uint64_t>(footer.data() + 45) != kBlockBasedMagic) return false;
  if (LoadLittle<uint32_t>(footer.data() + 41) != kFormatVersion) return false;
  if (footer[0] != static_cast<char>(kChecksum)) return false;
  absl::string_view handles = footer.substr(1, 40);
  for (int i = 0; i < 2; ++i) {
    const std::optional<uint64_t> offset = TakeVarint(handles);
    const std::optional<uint64_t> size = TakeVarint(handles);
    if (!offset.has_value() || !size.has_value()) return false;
    const uint64_t room = file_bytes - kTableFooterBytes;
    if (*offset > room || *size > room || *offset + *size + kBlockTrailerBytes > room) return false;
  }
  return handles.find_first_not_of('\0') == absl::string_view::npos;
}

class FooterChecked : public rocksdb::FileSystemWrapper {
 public:
  explicit FooterChecked(std::shared_ptr<rocksdb::FileSystem> base)
      : FileSystemWrapper(std::move(base)) {}

  const char* Name() const override { return "nibble.FooterChecked"; }
  IOStatus NewRandomAccessFile(const std::string& path, const rocksdb::FileOptions& options,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               rocksdb::IODebugContext* debug) override {
    IOStatus status = FileSystemWrapper::NewRandomAccessFile(path, options, result, debug);
    if (!absl::EndsWith(path, ".sst")) return status;
    // Given NotFound, RocksDB would try an older file name and name that one in its error.
    if (status.IsNotFound() || status.IsPathNotFound()) {
      return IOStatus::Corruption(absl::StrCat(path, " is missing"));
    }
    if (!status.ok()) return status;
    uint64_t size = 0;
    status = GetFileSize(path, options.io_options, &size, debug);
    if (!status.ok()) return status;
    char buffer[kTableFooterBytes];
    rocksdb::Slice footer;
    if (size >= kTableFooterBytes) {
      status = (*result)->Read(size - kTableFooterBytes, kTableFooterBytes, options.io_options,
                               &footer, buffer, debug);
      if (!status.ok()) return status;
    }
    const absl::Status checked = CheckTableFooter({footer.data(), footer.size()}, size, path);
    return checked.ok() ? status : IOStatus::Corruption(std::string(checked.message()));
  }
};

}  // namespace

absl::Status CheckTableFooter(absl::string_view footer, uint64_t file_bytes,
                              absl::string_view path) {
  if (IsIntact(footer, file_bytes)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path,
                                          " is damaged: the last bytes of the file, which has ",
                                          file_bytes, " bytes, are not the footer of a table"));
}

std::shared_ptr<rocksdb::FileSystem> FooterCheckedFileSystem(
    std::shared_ptr<rocksdb::FileSystem> base) {
  return std::make_shared<FooterChecked>(std::move(base));
}

}  // namespace nibble::rocks
