#include "server/store/rocks_glue.h"

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/file_checksum.h"
#include "rocksdb/options.h"
#include "rocksdb/status.h"
#include "rocksdb/table.h"

namespace nibble::rocks {
namespace {

// What goes wrong is in the statuses.
class SilentLogger : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
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
  // A write of one column family alone must not hold back the logs of the others.
  options.atomic_flush = true;
  // A log that a power failure cut anywhere is read up to the cut. Whether something acknowledged
  // was behind it is not RocksDB's to know; AcknowledgedMark does.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  // What is recovered from a log goes into new, synced files at once: the log's own pages may never
  // have reached the disk if its last sync failed.
  options.avoid_flush_during_recovery = false;
  options.avoid_flush_during_shutdown = true;
  // After a failed write the store is opened anew; nothing tries again behind its back.
  options.max_bgerror_resume_count = 0;
  options.paranoid_checks = true;
  options.max_open_files = -1;
  options.file_checksum_gen_factory = rocksdb::GetFileChecksumGenCrc32cFactory();
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;  // whose footer table_footer.h knows
  table.block_size = size_t{16} << 10;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace nibble::rocks
