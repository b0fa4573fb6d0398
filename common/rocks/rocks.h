// How this code uses RocksDB: options, status translation, and file systems below it.
//
// Ownership: file systems share the one below them; faults are borrowed and may be null.
// Thread-safety: free functions; a file system is as thread-safe as the one below it.
#ifndef NIBBLE_COMMON_ROCKS_ROCKS_H_
#define NIBBLE_COMMON_ROCKS_ROCKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/files/files.h"

namespace rocksdb {
class FileSystem;
class IOStatus;
class Slice;
class Status;
struct BlockBasedTableOptions;
struct Options;
}  // namespace rocksdb

namespace nibble::rocks {

// ResourceExhausted for a full disk, quota or file size limit; DataLoss for a file that is missing
// or has wrong bytes; Internal for other errors of the disk. RocksDB's text names the file.
absl::Status ToStatus(const rocksdb::Status& status, absl::string_view doing);
// For file systems below RocksDB: an error that ToStatus translates back to the same code if that
// is ResourceExhausted, and to Internal otherwise.
rocksdb::IOStatus ToIoStatus(const absl::Status& status);

rocksdb::Slice ToSlice(absl::string_view bytes);

// The options that all our databases share. Errors are reported by statuses, so RocksDB writes no
// log file of its own; there is no compression, no background statistics, and every table file
// stays open.
rocksdb::Options BaseOptions();
// Sets the format of table files. CheckTableFooter knows this format only.
void SetTableFormat(rocksdb::Options& options, rocksdb::BlockBasedTableOptions table);

// The default file system without syncing: the caller makes files durable when the database is
// closed, or the test does not need it. RocksDB would wait for the disk after each of a dozen small
// files. Reports writes to `faults`.
std::shared_ptr<rocksdb::FileSystem> UnsyncedFileSystem(DiskFaults* faults);

// The footer is the one part of a table file that has no checksum, and RocksDB takes from it the
// size of the block that it allocates and reads next. So it is checked before RocksDB reads it.
inline constexpr size_t kTableFooterBytes = 53;

// `footer`: the last kTableFooterBytes of a file of `file_bytes`. DataLoss if it is damaged; `path`
// is for the message.
absl::Status CheckTableFooter(absl::string_view footer, uint64_t file_bytes,
                              absl::string_view path);

// `base`, except that opening a table file (*.sst) for reading fails as corrupt if its footer is
// damaged. A table that a crash left unfinished is no error, because the database does not open it.
std::shared_ptr<rocksdb::FileSystem> FooterCheckedFileSystem(
    std::shared_ptr<rocksdb::FileSystem> base);

}  // namespace nibble::rocks

#endif  // NIBBLE_COMMON_ROCKS_ROCKS_H_
