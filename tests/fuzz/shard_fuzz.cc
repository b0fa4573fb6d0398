// Feeds arbitrary bytes to TokenShard::Open and checks the guarantees of a TokenSource for every
// shard that opens.
//
// An input is tried twice: unchanged, and with corrected checksums if its header determines their
// positions, since no mutation would ever hit them and reach the later checks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "common/crc32c.h"
#include "tests/fuzz/fuzz_checks.h"
#include "worker/trainer/data/mapped_file.h"
#include "worker/trainer/data/shard.h"

namespace {

// From docs/formats/token-shards.md, not from the code under test.
constexpr size_t kHeaderBytes = 128, kTokenWidth = 12, kTokenCount = 16, kDocumentCount = 24;
constexpr size_t kChunkBytes = 40, kIndexCrc = 44, kChunkTableCrc = 48, kHeaderCrc = 124;

using Bytes = std::vector<std::byte>;

template <class T>
T Get(const Bytes& file, size_t at) {
  T value;
  std::memcpy(&value, file.data() + at, sizeof(value));
  return value;
}

void PutCrc(Bytes& file, size_t at, size_t begin, size_t size) {
  const uint32_t crc = nibble::Crc32c({file.data() + begin, size});
  std::memcpy(file.data() + at, &crc, sizeof(crc));
}

// Corrects the checksums of data, index and table, if the counts of the header fill the file
// exactly, and that of the header.
void Seal(Bytes& file) {
  const unsigned __int128 count = Get<uint64_t>(file, kTokenCount);
  const unsigned __int128 documents = Get<uint64_t>(file, kDocumentCount);
  const auto chunk_bytes = Get<uint32_t>(file, kChunkBytes);
  const unsigned __int128 data = count * Get<uint32_t>(file, kTokenWidth);
  if (chunk_bytes > 0 && data <= file.size() && documents <= file.size()) {
    const size_t index = (kHeaderBytes + static_cast<size_t>(data) + 7) / 8 * 8;
    const size_t table = index + 8 * static_cast<size_t>(documents);
    const size_t chunks = (static_cast<size_t>(data) + chunk_bytes - 1) / chunk_bytes;
    if (table + 4 * chunks == file.size()) {
      for (size_t c = 0; c < chunks; ++c) {
        const size_t begin = c * chunk_bytes;
        PutCrc(file, table + 4 * c, kHeaderBytes + begin,
               std::min<size_t>(chunk_bytes, static_cast<size_t>(data) - begin));
      }
      PutCrc(file, kIndexCrc, index, table - index);
      PutCrc(file, kChunkTableCrc, table, file.size() - table);
    }
  }
  PutCrc(file, kHeaderCrc, 0, kHeaderCrc);
}

void CheckBytes(absl::Span<const std::byte> bytes) {
  const auto shard = nibble::TokenShard::Open("input", nibble::MappedFile::Borrow(bytes));
  if (!shard.ok()) {
    nibble::CheckRefusal(shard.status());
    return;
  }
  nibble::CheckSource(**shard, bytes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  CheckBytes({bytes, size});
  if (size < kHeaderBytes) return 0;
  Bytes sealed(bytes, bytes + size);
  Seal(sealed);
  CheckBytes(sealed);
  return 0;
}
