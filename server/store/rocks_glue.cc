#include "server/store/rocks_glue.h"

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/file_checksum.h"
#include "rocksdb/file_system.h"
#include "rocksdb/io_status.h"
#include "rocksdb/options.h"
#include "rocksdb/slice.h"
#include "rocksdb/status.h"
#include "rocksdb/table.h"
#include "server/store/store_format.h"

namespace nibble::rocks {
namespace {

// Errors are reported in statuses, so RocksDB's log is dropped.
class SilentLogger : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

}  // namespace

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
  return absl::UnavailableError(message);
}

std::vector<rocksdb::ColumnFamilyDescriptor> Families(const rocksdb::Options& options) {
  return {{rocksdb::kDefaultColumnFamilyName, options},
          {"entities", options},
          {"journal", options},
          {"topics", options}};
}

rocksdb::Options StoreOptions(rocksdb::Env* env, size_t write_buffer_bytes) {
  rocksdb::Options options;
  options.env = env;
  options.info_log = std::make_shared<SilentLogger>();
  options.compression = rocksdb::kNoCompression;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.max_background_jobs = 2;
  options.write_buffer_size = write_buffer_bytes;
  options.max_total_wal_size = 4 * uint64_t{write_buffer_bytes};
  // Otherwise a column family that is rarely flushed would keep the logs of the others.
  options.atomic_flush = true;
  // A log that a power failure cut is read up to the cut. RocksDB cannot know whether acknowledged
  // batches followed it; AcknowledgedMark does.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  // Whatever is recovered from a log is written to new, synced files at once: the log's own pages
  // may never have reached the disk if its last sync failed.
  options.avoid_flush_during_recovery = false;
  options.avoid_flush_during_shutdown = true;
  // After a failed write the store is reopened; RocksDB must not retry by itself.
  options.max_bgerror_resume_count = 0;
  options.paranoid_checks = true;
  options.max_open_files = -1;
  options.file_checksum_gen_factory = rocksdb::GetFileChecksumGenCrc32cFactory();
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;  // the one that CheckTableFooter knows
  table.block_size = size_t{16} << 10;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace nibble::rocks

namespace nibble {
namespace {

using rocksdb::IOStatus;

constexpr uint64_t kBlockBasedMagic = 0x88e241b785f4cff7;
constexpr uint32_t kFormatVersion = 5;
constexpr unsigned char kXxh3 = 4;
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
bool IsWhole(absl::string_view footer, uint64_t file_bytes) {
  if (footer.size() != kTableFooterBytes || file_bytes < kTableFooterBytes) return false;
  if (LoadLittle<uint64_t>(footer.substr(45)) != kBlockBasedMagic) return false;
  if (LoadLittle<uint32_t>(footer.substr(41)) != kFormatVersion) return false;
  if (static_cast<unsigned char>(footer[0]) != kXxh3) return false;
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
  if (IsWhole(footer, file_bytes)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, " is damaged: its end, of ", file_bytes,
                                          " bytes in all, is not that of a table"));
}

std::shared_ptr<rocksdb::FileSystem> FooterCheckedFileSystem(
    std::shared_ptr<rocksdb::FileSystem> base) {
  return std::make_shared<FooterChecked>(std::move(base));
}

}  // namespace nibble
