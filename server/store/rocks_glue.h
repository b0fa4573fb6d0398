// How the store uses RocksDB: options, translation of statuses, and a check of the footers of table
// files.
//
// Ownership: FooterCheckedFileSystem shares the file system below it. Thread-safety: free
// functions; a file system is as thread-safe as the one below it.
#ifndef NIBBLE_SERVER_STORE_ROCKS_GLUE_H_
#define NIBBLE_SERVER_STORE_ROCKS_GLUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rocksdb {
class Env;
class FileSystem;
class Status;
struct ColumnFamilyDescriptor;
struct Options;
}  // namespace rocksdb

namespace nibble {

namespace rocks {

// ResourceExhausted for a full disk, quota or file size limit; DataLoss for a file that is missing
// or has wrong bytes; Unavailable for other errors of the disk. RocksDB's text names the file.
absl::Status ToStatus(const rocksdb::Status& status, absl::string_view doing);

// The column families, in the order of ColumnFamily.
enum ColumnFamily { kMeta, kEntities, kJournal, kTopics, kColumnFamilies };
std::vector<rocksdb::ColumnFamilyDescriptor> Families(const rocksdb::Options& options);

// `write_buffer_bytes`: size of one column family in memory, before it becomes a table file.
rocksdb::Options StoreOptions(rocksdb::Env* env, size_t write_buffer_bytes);

}  // namespace rocks

// The footer is the one part of a table file that has no checksum, and RocksDB takes from it the
// size of the block that it allocates and reads next. So it is checked before RocksDB reads it.
inline constexpr size_t kTableFooterBytes = 53;

// `footer`: the last kTableFooterBytes of a file of `file_bytes`. DataLoss where it is damaged;
// `path` is for the message.
absl::Status CheckTableFooter(absl::string_view footer, uint64_t file_bytes,
                              absl::string_view path);

// `base`, except that opening a table file (*.sst) for reading fails as corrupt if its footer is
// damaged. A table that a crash left unfinished is no error, because the database does not open it.
std::shared_ptr<rocksdb::FileSystem> FooterCheckedFileSystem(
    std::shared_ptr<rocksdb::FileSystem> base);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_ROCKS_GLUE_H_
