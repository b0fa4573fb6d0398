#include "worker/checkpoint/shard_db.h"

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"
#include "rocksdb/options.h"
#include "rocksdb/slice.h"
#include "rocksdb/sst_file_writer.h"
#include "rocksdb/status.h"
#include "rocksdb/table.h"
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

// Statuses report errors; a log file per checkpoint would be one more file to damage.
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
  // RocksDB calls Sync once, after the last Append; nothing reads the buffers before that.
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

// A full disk is ResourceExhausted; a missing file or wrong bytes, DataLoss; other disk errors,
// Unavailable. RocksDB's text names the file.
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

// For a database that is filled once: no compression, no compaction, no cache, no log file.
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
  // Chunks bypass RocksDB's buffer: DirectFile has its own.
  options.writable_file_max_buffer_size = size_t{64} << 10;
  // One chunk per block, so that damage affects one chunk; a cache would only take memory.
  rocksdb::BlockBasedTableOptions table;
  table.block_size = 1;
  table.no_block_cache = true;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

// An Env whose new files are DirectFiles; *direct becomes false when one is not direct. The caller
// keeps it alive for as long as anything opened with it; it borrows `faults`, which may be null.
std::unique_ptr<rocksdb::Env> DirectEnv(DiskFaults* faults, std::atomic<bool>* direct) {
  return rocksdb::NewCompositeEnv(std::make_shared<DirectFileSystem>(faults, direct));
}

// An Env that leaves syncing to whoever closes the database (see DescribeShardFiles), and reports
// every write to `faults`. RocksDB would wait for the disk after each of a dozen small files, but
// they only have to be durable before the shard is sealed. Ownership as for DirectEnv.
std::unique_ptr<rocksdb::Env> UnsyncedEnv(DiskFaults* faults) {
  return rocksdb::NewCompositeEnv(std::make_shared<UnsyncedFileSystem>(faults));
}

}  // namespace
}  // namespace nibble::rocks

namespace nibble {
namespace {

// 'c', slice and chunk, big-endian, so that keys sort in the order of writing.
using ChunkKey = std::array<char, 1 + 4 + 8>;

ChunkKey KeyOf(int32_t slice, int64_t chunk) {
  ChunkKey key;
  key[0] = 'c';
  for (int i = 0; i < 4; ++i) key[1 + i] = static_cast<char>(slice >> (24 - 8 * i));
  for (int i = 0; i < 8; ++i) key[5 + i] = static_cast<char>(chunk >> (56 - 8 * i));
  return key;
}

rocksdb::Slice Rocks(const ChunkKey& key) { return {key.data(), key.size()}; }

}  // namespace

struct ShardDb::Handle {
  std::string path;
  std::unique_ptr<rocksdb::Env> env;  // null: the default one
  std::unique_ptr<rocksdb::DB> db;    // destroyed before its environment
};

ShardDb::ShardDb(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}

ShardDb::~ShardDb() { (void)Close(); }

absl::StatusOr<std::unique_ptr<ShardDb>> ShardDb::Create(const std::string& path,
                                                         DiskFaults* faults) {
  auto handle = std::make_unique<Handle>();
  handle->path = path;
  rocksdb::Options options = rocks::BaseOptions();
  options.create_if_missing = true;
  options.error_if_exists = true;
  handle->env = rocks::UnsyncedEnv(faults);
  options.env = handle->env.get();
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(options, path, &db);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("creating ", path));
  handle->db.reset(db);
  return std::unique_ptr<ShardDb>(new ShardDb(std::move(handle)));
}

absl::StatusOr<std::unique_ptr<ShardDb>> ShardDb::OpenToRead(const std::string& path) {
  auto handle = std::make_unique<Handle>();
  handle->path = path;
  rocksdb::Options options = rocks::BaseOptions();
  // Direct reads check the disk's content and leave a job's data in the page cache.
  options.use_direct_reads = TakesDirectReads(absl::StrCat(path, "/CURRENT"));
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(options, path, &db);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("opening ", path));
  handle->db.reset(db);
  return std::unique_ptr<ShardDb>(new ShardDb(std::move(handle)));
}

absl::Status ShardDb::Adopt(const std::vector<std::string>& files) {
  if (files.empty()) return absl::OkStatus();
  rocksdb::IngestExternalFileOptions options;
  options.move_files = true;
  options.failed_move_fall_back_to_copy = false;
  options.snapshot_consistency = false;
  options.write_global_seqno = false;
  return rocks::ToStatus(handle_->db->IngestExternalFile(files, options),
                         absl::StrCat("taking chunk files into ", handle_->path));
}

absl::Status ShardDb::ReadChunk(
    int32_t slice, int64_t chunk,
    absl::FunctionRef<absl::Status(absl::Span<const std::byte> bytes)> use) const {
  rocksdb::PinnableSlice value;
  const rocksdb::Status status =
      handle_->db->Get(rocksdb::ReadOptions(), handle_->db->DefaultColumnFamily(),
                       Rocks(KeyOf(slice, chunk)), &value);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("reading ", handle_->path));
  return use({reinterpret_cast<const std::byte*>(value.data()), value.size()});
}

absl::Status ShardDb::Close() {
  if (handle_->db == nullptr) return absl::OkStatus();
  const rocksdb::Status status = handle_->db->Close();
  handle_->db.reset();
  return rocks::ToStatus(status, absl::StrCat("closing ", handle_->path));
}

struct ChunkFileWriter::Handle {
  Handle(std::string prefix, int64_t file_bytes, DiskFaults* faults)
      : prefix(std::move(prefix)),
        file_bytes(file_bytes),
        env(rocks::DirectEnv(faults, &direct)),
        options(rocks::BaseOptions()) {
    options.env = env.get();
  }

  const std::string prefix;
  const int64_t file_bytes;
  std::atomic<bool> direct{true};
  std::unique_ptr<rocksdb::Env> env;
  rocksdb::Options options;
  std::unique_ptr<rocksdb::SstFileWriter> file;  // destroyed before its environment
  int64_t in_file = 0;
  std::vector<std::string> files;
};

ChunkFileWriter::ChunkFileWriter(std::string prefix, int64_t file_bytes, DiskFaults* faults)
    : handle_(std::make_unique<Handle>(std::move(prefix), file_bytes, faults)) {}

ChunkFileWriter::~ChunkFileWriter() = default;

bool ChunkFileWriter::direct() const { return handle_->direct; }

absl::Status ChunkFileWriter::Put(int32_t slice, int64_t chunk, absl::Span<const std::byte> bytes) {
  Handle& h = *handle_;
  if (h.file == nullptr) {
    h.files.push_back(absl::StrCat(h.prefix, h.files.size()));
    h.file = std::make_unique<rocksdb::SstFileWriter>(rocksdb::EnvOptions(h.options), h.options,
                                                      nullptr, false);
    const rocksdb::Status status = h.file->Open(h.files.back());
    if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("creating ", h.files.back()));
  }
  const rocksdb::Status status =
      h.file->Put(Rocks(KeyOf(slice, chunk)),
                  rocksdb::Slice(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("writing ", h.files.back()));
  h.in_file += static_cast<int64_t>(bytes.size());
  return h.in_file >= h.file_bytes ? FinishFile() : absl::OkStatus();
}

absl::Status ChunkFileWriter::FinishFile() {
  Handle& h = *handle_;
  const rocksdb::Status status = h.file->Finish();
  h.file.reset();
  h.in_file = 0;
  return rocks::ToStatus(status, absl::StrCat("finishing ", h.files.back()));
}

absl::StatusOr<std::vector<std::string>> ChunkFileWriter::Finish() {
  if (handle_->file != nullptr) {
    NIBBLE_RETURN_IF_ERROR(FinishFile());
  }
  return handle_->files;
}

}  // namespace nibble
