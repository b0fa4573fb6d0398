#include "worker/checkpoint/shard_db.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/bytes.h"
#include "common/files/files.h"
#include "common/rocks/rocks.h"
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
#include "worker/checkpoint/direct_file.h"

namespace nibble {
namespace {

using rocksdb::FileOptions;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

class DirectWritableFile : public FSWritableFile {
 public:
  DirectWritableFile(std::unique_ptr<DirectFile> file, std::atomic<bool>* direct)
      : file_(std::move(file)), direct_(direct) {}

  using FSWritableFile::Append;
  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    return rocks::ToIoStatus(
        file_->Append(AsBytes(data)));
  }
  // RocksDB calls Sync once, after the last Append; nothing reads the buffers before that.
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    const IOStatus status = rocks::ToIoStatus(file_->Finish());
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
    if (!file.ok()) return rocks::ToIoStatus(file.status());
    *result = std::make_unique<DirectWritableFile>(*std::move(file), direct_);
    return IOStatus::OK();
  }

 private:
  DiskFaults* const faults_;
  std::atomic<bool>* const direct_;
};

// For a database that is filled once: no compaction and no cache.
rocksdb::Options ShardOptions() {
  rocksdb::Options options = rocks::BaseOptions();
  options.disable_auto_compactions = true;
  options.avoid_flush_during_recovery = true;
  options.allow_fallocate = false;
  options.max_background_jobs = 1;
  options.write_buffer_size = size_t{1} << 20;
  // Chunks bypass RocksDB's buffer: DirectFile has its own.
  options.writable_file_max_buffer_size = size_t{64} << 10;
  // One chunk per block, so that damage affects one chunk; a cache would only take memory.
  rocksdb::BlockBasedTableOptions table;
  table.block_size = 1;
  table.no_block_cache = true;
  rocks::SetTableFormat(options, table);
  return options;
}

// An Env whose new files are DirectFiles; *direct becomes false when one is not direct. The caller
// keeps it alive for as long as anything opened with it; it borrows `faults`, which may be null.
std::unique_ptr<rocksdb::Env> DirectEnv(DiskFaults* faults, std::atomic<bool>* direct) {
  return rocksdb::NewCompositeEnv(std::make_shared<DirectFileSystem>(faults, direct));
}

// 'c', slice and chunk, big-endian, so that keys sort in the order of writing.
std::string KeyOf(int32_t slice, int64_t chunk) {
  std::string key = "c";
  for (int shift = 24; shift >= 0; shift -= 8) key.push_back(static_cast<char>(slice >> shift));
  for (int shift = 56; shift >= 0; shift -= 8) key.push_back(static_cast<char>(chunk >> shift));
  return key;
}

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
  rocksdb::Options options = ShardOptions();
  options.create_if_missing = true;
  options.error_if_exists = true;
  // DescribeShardFiles syncs the files of the closed database.
  handle->env = rocksdb::NewCompositeEnv(rocks::UnsyncedFileSystem(faults));
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
  rocksdb::Options options = ShardOptions();
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
                         absl::StrCat("ingesting chunk files into ", handle_->path));
}

absl::Status ShardDb::ReadChunk(
    int32_t slice, int64_t chunk,
    absl::FunctionRef<absl::Status(absl::Span<const std::byte> bytes)> use) const {
  rocksdb::PinnableSlice value;
  const rocksdb::Status status =
      handle_->db->Get(rocksdb::ReadOptions(), handle_->db->DefaultColumnFamily(),
                       rocks::ToSlice(KeyOf(slice, chunk)), &value);
  if (!status.ok()) return rocks::ToStatus(status, absl::StrCat("reading ", handle_->path));
  return use(AsBytes(value));
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
        env(DirectEnv(faults, &direct)),
        options(ShardOptions()) {
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
      h.file->Put(rocks::ToSlice(KeyOf(slice, chunk)),
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
