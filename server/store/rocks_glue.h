// How this folder uses RocksDB: its options and its statuses.
//
// Ownership: values. Thread-safety: free functions.
#ifndef NIBBLE_SERVER_STORE_ROCKS_GLUE_H_
#define NIBBLE_SERVER_STORE_ROCKS_GLUE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rocksdb/db.h"
#include "rocksdb/options.h"
#include "rocksdb/status.h"

namespace nibble::rocks {

// A full disk, quota or file size limit is ResourceExhausted; a file that is missing or whose bytes
// are wrong, DataLoss; other errors of the disk, Unavailable. RocksDB's text names the file.
absl::Status ToStatus(const rocksdb::Status& status, absl::string_view doing);

// The column families, in the order of ColumnFamily.
enum ColumnFamily { kMeta, kEntities, kJournal, kTopics, kColumnFamilies };
std::vector<rocksdb::ColumnFamilyDescriptor> Families(const rocksdb::Options& options);

// `write_buffer_bytes`: of one column family, before it becomes a table file.
rocksdb::Options StoreOptions(rocksdb::Env* env, size_t write_buffer_bytes);

}  // namespace nibble::rocks

#endif  // NIBBLE_SERVER_STORE_ROCKS_GLUE_H_
