// The file ACKNOWLEDGED: the highest sequence number that is known to be durable, kept apart from
// the database, so that a database from which acknowledged batches have gone is told from one whose
// last, unacknowledged write a power failure cut.
//
// A log cannot tell the two by itself: where its bytes stop making sense, it ends. The mark is
// written after every synced write, before any of its batches is acknowledged, and synced only now
// and then: a process that dies leaves it exact; a power failure leaves it at most
// kMarksPerSync - 1 writes behind, and never ahead.
//
// Two slots, of which one is written and the other, older one is durable; so one of them is whole
// whatever happens, and either may be damaged.
//
// Ownership: owns the open file; borrows the file system. Thread-safety: one thread at a time.
#ifndef NIBBLE_SERVER_STORE_ACKNOWLEDGED_MARK_H_
#define NIBBLE_SERVER_STORE_ACKNOWLEDGED_MARK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rocksdb {
class FileSystem;
class FSRandomRWFile;
}  // namespace rocksdb

namespace nibble {

inline constexpr char kMarkName[] = "ACKNOWLEDGED";
inline constexpr int kMarksPerSync = 64;

class AcknowledgedMark {
 public:
  // Makes the file in `directory`, durably.
  static absl::Status Create(rocksdb::FileSystem& fs, const std::string& directory,
                             uint64_t sequence);
  // What it says. NotFound where there is none; DataLoss where neither slot is whole.
  static absl::StatusOr<uint64_t> Read(rocksdb::FileSystem& fs, const std::string& directory);
  // To go on from `sequence`, which is at least what it says; durable on return.
  static absl::StatusOr<std::unique_ptr<AcknowledgedMark>> Open(rocksdb::FileSystem& fs,
                                                                const std::string& directory,
                                                                uint64_t sequence);
  ~AcknowledgedMark();
  AcknowledgedMark(const AcknowledgedMark&) = delete;
  AcknowledgedMark& operator=(const AcknowledgedMark&) = delete;

  // Durable sooner or later; seen at once by whoever reads the file.
  absl::Status Advance(uint64_t sequence);
  // Both slots say `sequence`, durably.
  absl::Status Finish(uint64_t sequence);

 private:
  AcknowledgedMark(std::unique_ptr<rocksdb::FSRandomRWFile> file, std::string path, int slot);
  absl::Status WriteSlot(uint64_t sequence);
  absl::Status SyncAndSwitch();

  const std::unique_ptr<rocksdb::FSRandomRWFile> file_;
  const std::string path_;
  int slot_;  // the one being written
  int unsynced_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_ACKNOWLEDGED_MARK_H_
