#include "server/store/store.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

absl::Status CheckName(absl::string_view field, absl::string_view name, size_t bound,
                       bool zero_allowed) {
  if (name.empty() || name.size() > bound) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", name.size(), " bytes, allowed are 1 to ", bound));
  }
  if (!zero_allowed && name.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(field, " has a zero byte at ", name.find('\0'),
                                                   "; zero bytes are not allowed"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> Store::Commit(StoreBatch batch) {
  Mutex mutex;
  CondVar changed;
  bool finished = false;
  absl::Status result;
  const absl::StatusOr<uint64_t> sequence = Append(std::move(batch), [&](absl::Status status) {
    // Signals under the lock: Commit may return as soon as it can see `finished`.
    MutexLock lock(&mutex);
    result = std::move(status);
    finished = true;
    changed.Signal();
  });
  if (!sequence.ok()) return sequence;
  MutexLock lock(&mutex);
  while (!finished) changed.Wait(&mutex);
  if (!result.ok()) return result;
  return sequence;
}

size_t BatchBytes(const StoreBatch& batch) {
  size_t bytes = batch.record.size();
  for (const StoreChange& change : batch.changes) {
    bytes += change.kind.size() + change.key.size();
    if (change.value.has_value()) bytes += change.value->size();
  }
  return bytes;
}

absl::Status CheckBatch(const StoreBatch& batch) {
  for (const StoreChange& change : batch.changes) {
    NIBBLE_RETURN_IF_ERROR(CheckName("kind", change.kind, kMaxStoreKindBytes, false));
    const std::string field = absl::StrCat("key of a ", change.kind);
    NIBBLE_RETURN_IF_ERROR(CheckName(field, change.key, kMaxStoreKeyBytes, true));
  }
  const size_t bytes = BatchBytes(batch);
  if (bytes > kMaxStoreBatchBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch: ", bytes, " bytes, allowed are ", kMaxStoreBatchBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckClusterName(absl::string_view cluster) {
  NIBBLE_RETURN_IF_ERROR(CheckName("cluster", cluster, kMaxClusterNameBytes, false));
  for (const char c : cluster) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) {
      return absl::InvalidArgumentError(absl::StrCat("cluster has the byte ",
                                                     static_cast<unsigned char>(c),
                                                     ", allowed are printable ASCII characters"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckJournalStart(uint64_t from, const StoreInfo& info) {
  if (from < info.first_sequence) {
    return absl::OutOfRangeError(
        absl::StrCat("journal from ", from, ": the oldest record kept is ", info.first_sequence));
  }
  if (from > info.last_sequence + 1) {
    return absl::OutOfRangeError(
        absl::StrCat("journal from ", from, ": the last record is ", info.last_sequence));
  }
  return absl::OkStatus();
}

absl::Status CheckTrim(uint64_t through, const StoreInfo& info) {
  if (through <= info.last_sequence) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("trim through ", through, ": the last record is ", info.last_sequence));
}

std::function<absl::Duration()> ClockOf(const StoreOptions& options) {
  if (options.clock) return options.clock;
  return [] { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); };
}

}  // namespace nibble
