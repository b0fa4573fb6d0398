// The end of a RocksDB table file, checked before RocksDB reads it: it is the one part of a table
// that has no checksum, and from a damaged one RocksDB would take the size of the block that it
// allocates and reads next.
//
// Ownership: shares the file system below. Thread-safety: that of the file system below.
#ifndef NIBBLE_SERVER_STORE_TABLE_FOOTER_H_
#define NIBBLE_SERVER_STORE_TABLE_FOOTER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rocksdb {
class FileSystem;
}  // namespace rocksdb

namespace nibble {

inline constexpr size_t kTableFooterBytes = 53;

// The last kTableFooterBytes of a file of so many bytes. DataLoss; `path` is for the message.
absl::Status CheckTableFooter(absl::string_view footer, uint64_t file_bytes,
                              absl::string_view path);

// `base`, where opening a table file (*.sst) to read it fails as corrupt if its end is damaged.
// Only what a database refers to is opened: a table that a crash left unfinished is no error.
std::shared_ptr<rocksdb::FileSystem> FooterCheckedFileSystem(
    std::shared_ptr<rocksdb::FileSystem> base);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_TABLE_FOOTER_H_
