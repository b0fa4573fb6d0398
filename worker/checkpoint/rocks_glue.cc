#include "worker/checkpoint/rocks_glue.h"

#include <atomic>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"
#include "rocksdb/options.h"
#include "rocksdb/slice.h"
#include "rocksdb/status.h"
#include "rocksdb/table.h"
#include "worker/checkpoint/direct_file.h"
#include "worker/checkpoint/disk.h"

namespace nibble::rocks {
namespace {

using rocksdb::FileOptions;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

rocksdb::IOStatus ToIoStatus(const absl::Status& status) {
  if (status.ok()) return IOStatus::OK();
  const std::string message(status.message());
  return absl::IsResourceExhausted(status) ? IOStatus::NoSpace(message)
                                           : IOStatus::IOError(message);
}

// What goes wrong is in the statuses; a log file per checkpoint would be one more file to damage.
class SilentLogger : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

class DirectWritableFile : public FSWritableFile {
 public:
  DirectWritableFile(std::unique_ptr<DirectFile> file, std::atomic<bool>* direct)
      : file_(std::move(file)), direct_(direct) {}

  using FSWritableFile::Append;
  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    return ToIoStatus(
        file_->Append({reinterpret_cast<const std::byte*>(data.data()), data.size()}));
  }
  // Comes once, when all is written: what is in the buffers before is nobody's to see.
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    const IOStatus status = ToIoStatus(file_->Finish());
    if (!file_->direct()) *direct_ = false;
    return status;
  }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override {
    return static_cast<uint64_t>(file_->size());
  }

 private:
  std::unique_ptr<DirectFile> file_;
  std::atomic<bool>* const direct_;
};

class DirectFileSystem : public rocksdb::FileSystemWrapper {
 public:
  DirectFileSystem(DiskFaults* faults, std::atomic<bool>* direct)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), faults_(faults), direct_(direct) {}

  const char* Name() const override { return "nibble.DirectFileSystem"; }
  IOStatus NewWritableFile(const std::string& path, const FileOptions&,
                           std::unique_ptr<FSWritableFile>* result, IODebugContext*) override {
    absl::StatusOr<std::unique_ptr<DirectFile>> file = DirectFile::Create(path, faults_);
    if (!file.ok()) return ToIoStatus(file.status());
    *result = std::make_unique<DirectWritableFile>(*std::move(file), direct_);
    return IOStatus::OK();
  }

 private:
  DiskFaults* const faults_;
  std::atomic<bool>* const direct_;
};

class UnsyncedFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  UnsyncedFile(std::unique_ptr<FSWritableFile> file, std::string path, DiskFaults* faults)
      : FSWritableFileOwnerWrapper(std::move(file)), path_(std::move(path)), faults_(faults) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    const IOStatus fault = Before(data);
    return fault.ok() ? FSWritableFileOwnerWrapper::Append(data, options, debug) : fault;
  }
  IOStatus Append(const Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& info, IODebugContext* debug) override {
    const IOStatus fault = Before(data);
    return fault.ok() ? FSWritableFileOwnerWrapper::Append(data, options, info, debug) : fault;
  }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Fsync(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

 private:
  IOStatus Before(const Slice& data) {
    if (faults_ == nullptr) return IOStatus::OK();
    const int error = faults_->BeforeWrite(path_, static_cast<int64_t>(data.size()));
    if (error == 0) return IOStatus::OK();
    return ToIoStatus(ErrnoStatus(error, absl::StrCat("writing ", path_)));
  }

  const std::string path_;
  DiskFaults* const faults_;
};

class UnsyncedDirectory : public rocksdb::FSDirectory {
 public:
  IOStatus Fsync(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
};

class UnsyncedFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit UnsyncedFileSystem(DiskFaults* faults)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), faults_(faults) {}

  const char* Name() const override { return "nibble.UnsyncedFileSystem"; }
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

absl::Status ToStatus(const rocksdb::Status& status, absl::string_view doing) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(doing, ": ", status.ToString());
  // RocksDB knows ENOSPC, but a quota and a file size limit only by their text.
  if (status.IsNoSpace() || absl::StrContains(message, std::strerror(EDQUOT)) ||
      absl::StrContains(message, std::strerror(EFBIG))) {
    return absl::ResourceExhaustedError(message);
  }
  if (status.IsCorruption() || status.IsPathNotFound() || status.IsNotFound() ||
      status.IsInvalidArgument() || status.IsNotSupported()) {
    return absl::DataLossError(message);
  }
  return absl::UnavailableError(message);
}

rocksdb::Options BaseOptions() {
  rocksdb::Options options;
  options.info_log = std::make_shared<SilentLogger>();
  options.compression = rocksdb::kNoCompression;
  options.disable_auto_compactions = true;
  options.avoid_flush_during_shutdown = true;
  options.avoid_flush_during_recovery = true;
  options.allow_fallocate = false;
  options.max_background_jobs = 1;
  options.max_open_files = -1;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.write_buffer_size = size_t{1} << 20;
  // Chunks pass RocksDB's own buffer by: DirectFile has two.
  options.writable_file_max_buffer_size = size_t{64} << 10;
  // One chunk is one block, so that damage is of one chunk; a cache would only take memory.
  rocksdb::BlockBasedTableOptions table;
  table.block_size = 1;
  table.no_block_cache = true;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

std::unique_ptr<rocksdb::Env> DirectEnv(DiskFaults* faults, std::atomic<bool>* direct) {
  return rocksdb::NewCompositeEnv(std::make_shared<DirectFileSystem>(faults, direct));
}

std::unique_ptr<rocksdb::Env> UnsyncedEnv(DiskFaults* faults) {
  return rocksdb::NewCompositeEnv(std::make_shared<UnsyncedFileSystem>(faults));
}

}  // namespace nibble::rocks
