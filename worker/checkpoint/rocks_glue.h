// How this folder uses RocksDB: options, statuses, and the two file systems put below it. The only
// header here, with the .cc files that include it, that sees RocksDB's.
//
// Ownership: an Env is owned by the caller and outlives whatever was opened with it; it borrows
// `faults`, which may be null. Thread-safety: free functions; an Env may be used by several threads.
#ifndef NIBBLE_WORKER_CHECKPOINT_ROCKS_GLUE_H_
#define NIBBLE_WORKER_CHECKPOINT_ROCKS_GLUE_H_

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rocksdb/env.h"
#include "rocksdb/options.h"
#include "rocksdb/status.h"
#include "worker/checkpoint/disk.h"

namespace nibble::rocks {

// A full disk is ResourceExhausted; a file that is missing or whose bytes are wrong, DataLoss;
// other errors of the disk, Unavailable. RocksDB's text names the file.
absl::Status ToStatus(const rocksdb::Status& status, absl::string_view doing);

// For a database that is filled once: no compression, no compaction, no cache, no log file.
rocksdb::Options BaseOptions();

// An Env whose new files are DirectFiles; *direct becomes false where one was not direct.
std::unique_ptr<rocksdb::Env> DirectEnv(DiskFaults* faults, std::atomic<bool>* direct);

// An Env that leaves syncing to whoever closes the database (see DescribeShardFiles), and shows
// every write to `faults`. RocksDB waits for the disk after each of a dozen small files, while all
// that counts is that they are durable before the shard is sealed.
std::unique_ptr<rocksdb::Env> UnsyncedEnv(DiskFaults* faults);

}  // namespace nibble::rocks

#endif  // NIBBLE_WORKER_CHECKPOINT_ROCKS_GLUE_H_
