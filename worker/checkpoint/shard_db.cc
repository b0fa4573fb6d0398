#include "worker/checkpoint/shard_db.h"

#include <array>
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
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/options.h"
#include "rocksdb/slice.h"
#include "rocksdb/sst_file_writer.h"
#include "worker/checkpoint/disk.h"
#include "worker/checkpoint/rocks_glue.h"

namespace nibble {
namespace {

// 'c', slice and chunk, the highest byte first: keys sort as the chunks were written.
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
  std::unique_ptr<rocksdb::DB> db;    // goes before its environment
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
  // What is read is what is on the disk, and a job's data stays in the page cache.
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
  std::unique_ptr<rocksdb::SstFileWriter> file;  // goes before its environment
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
    if (absl::Status status = FinishFile(); !status.ok()) return status;
  }
  return handle_->files;
}

}  // namespace nibble
