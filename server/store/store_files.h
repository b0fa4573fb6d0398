// The small files of a store, read whole and replaced whole, through the file system that its
// database uses too.
//
// Ownership: borrows the file system. Thread-safety: free functions, independent for different
// paths.
#ifndef NIBBLE_SERVER_STORE_STORE_FILES_H_
#define NIBBLE_SERVER_STORE_STORE_FILES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rocksdb {
class FileSystem;
}  // namespace rocksdb

namespace nibble::store_files {

// More than any file that is read whole may have; a larger one is DataLoss.
inline constexpr size_t kMaxWholeFileBytes = size_t{1} << 20;

// NotFound where there is none.
absl::StatusOr<std::string> Read(rocksdb::FileSystem& fs, const std::string& path);

// Durable on return; the file has its old content or the new one, whatever happens in between. The
// new content is first at `path`.tmp.
absl::Status Replace(rocksdb::FileSystem& fs, const std::string& directory, const std::string& name,
                     absl::string_view content);

// Makes the names in a directory durable.
absl::Status SyncDirectory(rocksdb::FileSystem& fs, const std::string& path);

// Creates a directory where none is; durable on return, with its name in the one above it.
absl::Status CreateDirectory(rocksdb::FileSystem& fs, const std::string& path);

// The names in a directory, sorted, without "." and "..".
absl::StatusOr<std::vector<std::string>> List(rocksdb::FileSystem& fs, const std::string& path);

}  // namespace nibble::store_files

#endif  // NIBBLE_SERVER_STORE_STORE_FILES_H_
