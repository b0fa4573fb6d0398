// The keys and values of a store's database, to the byte (docs/formats/coordinator-store.md).
//
// Every value is sealed: it carries the sequence number of the batch that wrote it, and a CRC-32C
// of that number, of its payload, and of its table and key, which detects damaged bytes as well as
// intact bytes in the wrong place.
//
// Ownership: parsed views point into the bytes given. Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STORE_STORE_FORMAT_H_
#define NIBBLE_SERVER_STORE_STORE_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble::store_format {

inline constexpr int kVersion = 1;

enum class Table : char {
  kMeta = 'm',     // name → number or text
  kEntity = 'e',   // kind, zero, key → value
  kJournal = 'j',  // sequence → record
};
const char* TableName(Table table);

std::string EntityKey(absl::string_view kind, absl::string_view key);
std::optional<std::pair<absl::string_view, absl::string_view>> ParseEntityKey(
    absl::string_view bytes);
// The first key that an entity of this kind can have, and the first key after all of them.
std::string FirstOfKind(absl::string_view kind);
std::string AfterKind(absl::string_view kind);

// Big-endian, so that records sort by sequence number.
std::string JournalKey(uint64_t sequence);
std::optional<uint64_t> ParseJournalKey(absl::string_view bytes);

std::string EncodeRecord(absl::string_view record);
std::optional<absl::string_view> ParseRecord(absl::string_view payload);

std::string EncodeNumber(uint64_t number);
std::optional<uint64_t> ParseNumber(absl::string_view payload);

struct Sealed {
  uint64_t sequence;
  absl::string_view payload;
};
std::string Seal(Table table, absl::string_view key, uint64_t sequence, absl::string_view payload);
// DataLoss, naming table and key.
absl::StatusOr<Sealed> Unseal(Table table, absl::string_view key, absl::string_view value);

}  // namespace nibble::store_format

#endif  // NIBBLE_SERVER_STORE_STORE_FORMAT_H_
