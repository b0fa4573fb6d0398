#include "server/store/store_format.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "common/crc32c.h"

namespace nibble::store_format {
namespace {

constexpr size_t kSealBytes = 4 + 8;
constexpr uint32_t kReserved = 0;  // before a record's bytes

uint32_t SealCrc(Table table, absl::string_view key, absl::string_view sequence_and_payload) {
  // The key's size keeps bytes from moving between the key and the value.
  std::string head(1, static_cast<char>(table));
  AppendLittle(head, static_cast<uint32_t>(key.size()));
  return ExtendCrc32c(ExtendCrc32c(Crc32c(head), key), sequence_and_payload);
}

std::string Joined(absl::string_view name, char separator, absl::string_view rest) {
  std::string key;
  key.reserve(name.size() + 1 + rest.size());
  key.append(name.data(), name.size());
  key.push_back(separator);
  key.append(rest.data(), rest.size());
  return key;
}

std::optional<std::pair<absl::string_view, absl::string_view>> Split(absl::string_view bytes) {
  const size_t zero = bytes.find('\0');
  if (zero == absl::string_view::npos || zero == 0) return std::nullopt;
  return std::make_pair(bytes.substr(0, zero), bytes.substr(zero + 1));
}

}  // namespace

const char* TableName(Table table) {
  switch (table) {
    case Table::kMeta:
      return "meta";
    case Table::kEntity:
      return "entities";
    case Table::kJournal:
      return "journal";
  }
  return "unknown";
}

std::string EntityKey(absl::string_view kind, absl::string_view key) {
  return Joined(kind, '\0', key);
}

std::optional<std::pair<absl::string_view, absl::string_view>> ParseEntityKey(
    absl::string_view bytes) {
  return Split(bytes);
}

std::string FirstOfKind(absl::string_view kind) { return Joined(kind, '\0', ""); }

// A kind has no zero byte, so what follows the zero cannot be part of another kind.
std::string AfterKind(absl::string_view kind) { return Joined(kind, '\1', ""); }

std::string JournalKey(uint64_t sequence) {
  std::string key;
  for (int i = 7; i >= 0; --i) key.push_back(static_cast<char>(sequence >> (8 * i)));
  return key;
}

std::optional<uint64_t> ParseJournalKey(absl::string_view bytes) {
  if (bytes.size() != sizeof(uint64_t)) return std::nullopt;
  uint64_t sequence = 0;
  for (const char c : bytes) sequence = sequence << 8 | static_cast<unsigned char>(c);
  return sequence;
}

std::string EncodeRecord(absl::string_view record) {
  std::string payload;
  AppendLittle(payload, kReserved);
  payload.append(record.data(), record.size());
  return payload;
}

std::optional<absl::string_view> ParseRecord(absl::string_view payload) {
  if (payload.size() < sizeof(kReserved) || LoadLittle<uint32_t>(payload.data()) != kReserved) {
    return std::nullopt;
  }
  return payload.substr(sizeof(kReserved));
}

std::string EncodeNumber(uint64_t number) {
  std::string payload;
  AppendLittle(payload, number);
  return payload;
}

std::optional<uint64_t> ParseNumber(absl::string_view payload) {
  if (payload.size() != sizeof(uint64_t)) return std::nullopt;
  return LoadLittle<uint64_t>(payload.data());
}

std::string Seal(Table table, absl::string_view key, uint64_t sequence, absl::string_view payload) {
  std::string value;
  value.reserve(kSealBytes + payload.size());
  AppendLittle(value, uint32_t{0});
  AppendLittle(value, sequence);
  value.append(payload.data(), payload.size());
  StoreLittle(value.data(), SealCrc(table, key, absl::string_view(value).substr(4)));
  return value;
}

absl::StatusOr<Sealed> Unseal(Table table, absl::string_view key, absl::string_view value) {
  if (value.size() < kSealBytes) {
    return absl::DataLossError(absl::StrCat(TableName(table), " key \"", absl::CHexEscape(key),
                                            "\": the value has ", value.size(),
                                            " bytes; every value has at least ", kSealBytes));
  }
  const uint32_t stored = LoadLittle<uint32_t>(value.data());
  const uint32_t computed = SealCrc(table, key, value.substr(4));
  if (stored != computed) {
    return absl::DataLossError(absl::StrFormat("%s key \"%s\": stored CRC-32C %08x, computed %08x",
                                               TableName(table), absl::CHexEscape(key), stored,
                                               computed));
  }
  return Sealed{LoadLittle<uint64_t>(value.data() + 4), value.substr(kSealBytes)};
}

}  // namespace nibble::store_format
