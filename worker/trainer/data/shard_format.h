// The bytes of a token shard, as docs/formats/token-shards.md describes them: its header, and where
// its other parts lie. Reader and writer share it.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_TRAINER_DATA_SHARD_FORMAT_H_
#define NIBBLE_WORKER_TRAINER_DATA_SHARD_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nibble::shard_internal {

inline constexpr std::array<char, 8> kMagic = {'N', 'B', 'T', 'O', 'K', 'E', 'N', 'S'};
inline constexpr uint64_t kHeaderBytes = 128;
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kNoEndOfDocument = 0xffffffffu;
inline constexpr size_t kTokenizerBytes = 32;
// Keeps every product and sum of sizes far from overflow; a petabyte of 4-byte tokens.
inline constexpr uint64_t kMaxTokens = uint64_t{1} << 48;
inline constexpr uint32_t kMinChunkBytes = 64;
inline constexpr uint32_t kMaxChunkBytes = uint32_t{1} << 30;

struct ShardHeader {
  uint32_t token_width = 2;  // bytes
  uint64_t token_count = 0;
  uint64_t document_count = 0;
  uint32_t vocabulary = 0;
  uint32_t end_of_document = kNoEndOfDocument;
  uint32_t chunk_bytes = 0;
  uint32_t index_crc = 0;
  uint32_t chunk_table_crc = 0;
  std::string tokenizer;
};

// Offsets and sizes in bytes from the beginning of the file; offsets are multiples of
// 8. Between the data and the index lie zeros.
struct ShardLayout {
  uint64_t data_begin = kHeaderBytes;
  uint64_t data_bytes = 0;
  uint64_t index_begin = 0;
  uint64_t index_bytes = 0;
  uint64_t table_begin = 0;
  uint64_t chunks = 0;
  uint64_t file_bytes = 0;
};

// InvalidArgument naming the field, its value and its bound.
absl::Status Check(const ShardHeader& header);

// Of a header that passed Check().
ShardLayout LayoutOf(const ShardHeader& header);

std::array<std::byte, kHeaderBytes> EncodeHeader(const ShardHeader& header);

// A checked header from the first bytes of a file.
//
//   InvalidArgument  too few bytes, another magic or version, or a field that Check() refuses
//   DataLoss         the header's checksum disagrees
absl::StatusOr<ShardHeader> DecodeHeader(absl::Span<const std::byte> file);

}  // namespace nibble::shard_internal

#endif  // NIBBLE_WORKER_TRAINER_DATA_SHARD_FORMAT_H_
