// The encoding of manifests as bytes.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "common/safetensors/dtype.h"
#include "common/status_macros.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {
namespace {

// A record is: magic, version, length of the payload, payload, CRC-32C of all before it.
constexpr absl::string_view kShardMagic = "NBSHARD1";
constexpr absl::string_view kManifestMagic = "NBCHKPT1";
constexpr absl::string_view kHeaderMagic = "NBHEADR1";
constexpr absl::string_view kSlicesMagic = "NBSLICE1";
constexpr size_t kMagicBytes = 8;
constexpr size_t kEnvelopeBytes = kMagicBytes + 4 + 8 + 4;

uint32_t Crc(absl::string_view bytes) {
  return Crc32c({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

// Little-endian on every machine.
template <class T>
void Put(std::string& out, T value) {
  using Unsigned = std::make_unsigned_t<T>;
  for (size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<char>((static_cast<Unsigned>(value) >> (8 * i)) & 0xff));
  }
}

void PutString(std::string& out, absl::string_view value) {
  Put<uint64_t>(out, value.size());
  out.append(value.data(), value.size());
}

std::string Envelope(absl::string_view magic, absl::string_view payload) {
  std::string record(magic);
  Put(record, kManifestVersion);
  PutString(record, payload);
  Put(record, Crc(record));
  return record;
}

// Reads values from the front of some bytes; after the first missing value, every read fails.
class Taker {
 public:
  explicit Taker(absl::string_view bytes) : rest_(bytes) {}

  template <class T>
  T Take() {
    std::make_unsigned_t<T> value = 0;
    const absl::string_view bytes = TakeBytes(sizeof(T));
    for (size_t i = 0; i < bytes.size(); ++i) {
      value |= static_cast<std::make_unsigned_t<T>>(static_cast<uint8_t>(bytes[i])) << (8 * i);
    }
    return static_cast<T>(value);
  }
  absl::string_view TakeBytes(uint64_t count) {
    if (count > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const absl::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }
  absl::string_view TakeString() { return TakeBytes(Take<uint64_t>()); }
  // A count of items that each take at least `bytes_each` more bytes.
  uint64_t TakeCount(size_t bytes_each) {
    const uint64_t count = Take<uint64_t>();
    if (count > rest_.size() / bytes_each) {
      ok_ = false;
      rest_ = {};
      return 0;
    }
    return count;
  }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && rest_.empty(); }

 private:
  absl::string_view rest_;
  bool ok_ = true;
};

absl::StatusOr<absl::string_view> PayloadOf(absl::string_view magic, absl::string_view what,
                                            absl::string_view bytes) {
  if (bytes.size() < kEnvelopeBytes) {
    return absl::DataLossError(absl::StrCat(what, " has ", bytes.size(),
                                            " bytes, fewer than the smallest, ", kEnvelopeBytes));
  }
  const absl::string_view covered = bytes.substr(0, bytes.size() - 4);
  const uint32_t stored = Taker(bytes.substr(covered.size())).Take<uint32_t>();
  if (const uint32_t found = Crc(covered); found != stored) {
    return absl::DataLossError(absl::StrCat(what, " has checksum 0x", absl::Hex(found),
                                            ", its record says 0x", absl::Hex(stored)));
  }
  Taker taker(covered);
  if (taker.TakeBytes(kMagicBytes) != magic) {
    return absl::DataLossError(absl::StrCat(what, " does not begin with ", magic));
  }
  if (const uint32_t version = taker.Take<uint32_t>(); version != kManifestVersion) {
    return absl::FailedPreconditionError(absl::StrCat(what, " is of format version ", version,
                                                      "; this program reads version ",
                                                      kManifestVersion));
  }
  const absl::string_view payload = taker.TakeString();
  if (!taker.done()) {
    return absl::DataLossError(absl::StrCat(what, " is not of the length that it says"));
  }
  return payload;
}

// The checksum is right, so a faulty program wrote these values.
absl::Status Malformed(absl::string_view what, const absl::Status& why) {
  return absl::DataLossError(absl::StrCat(what, " is malformed: ", why.message()));
}

void PutHeader(std::string& out, const CheckpointHeader& header) {
  PutString(out, header.identity.cluster);
  PutString(out, header.identity.job);
  Put(out, header.step);
  Put(out, header.attempt);
  Put(out, header.data_position);
  Put(out, header.seed);
  Put(out, header.formula_version);
  Put(out, header.world);
  Put(out, header.time_unix_nanos);
  PutString(out, header.recipe_timeline);
  PutString(out, header.spec);
}

CheckpointHeader TakeHeader(Taker& taker) {
  CheckpointHeader header;
  header.identity.cluster = std::string(taker.TakeString());
  header.identity.job = std::string(taker.TakeString());
  header.step = taker.Take<int64_t>();
  header.attempt = taker.Take<int64_t>();
  header.data_position = taker.Take<int64_t>();
  header.seed = taker.Take<uint64_t>();
  header.formula_version = taker.Take<int32_t>();
  header.world = taker.Take<int32_t>();
  header.time_unix_nanos = taker.Take<int64_t>();
  header.recipe_timeline = std::string(taker.TakeString());
  header.spec = std::string(taker.TakeString());
  return header;
}

constexpr size_t kSmallestSlice = 5 * 8;

void PutSlice(std::string& out, const TensorSlice& slice) {
  PutString(out, slice.name);
  PutString(out, std::string(FileDTypeName(slice.dtype)));
  Put<uint64_t>(out, slice.shape.size());
  for (const int64_t size : slice.shape) Put(out, size);
  Put(out, slice.first);
  Put(out, slice.count);
}

// DataLoss for a dtype that is not known; other bounds are the caller's to check.
absl::Status TakeSlice(Taker& taker, TensorSlice& slice) {
  slice.name = std::string(taker.TakeString());
  const std::string dtype(taker.TakeString());
  const std::optional<FileDType> known = FileDTypeFromName(dtype);
  if (taker.ok() && !known.has_value()) {
    return absl::DataLossError(absl::StrCat("dtype ", dtype, " is not known"));
  }
  slice.dtype = known.value_or(FileDType::kF32);
  slice.shape.resize(taker.TakeCount(sizeof(int64_t)));
  for (int64_t& size : slice.shape) size = taker.Take<int64_t>();
  slice.first = taker.Take<int64_t>();
  slice.count = taker.Take<int64_t>();
  return absl::OkStatus();
}

absl::Status NotOfItsLength() { return absl::DataLossError("its fields do not fill its length"); }

}  // namespace

std::string EncodeShard(const ShardManifest& shard) {
  std::string payload;
  Put(payload, shard.step);
  Put(payload, shard.attempt);
  Put(payload, shard.rank);
  Put(payload, shard.chunk_bytes);
  Put<uint64_t>(payload, shard.slices.size());
  for (const StoredSlice& stored : shard.slices) {
    PutSlice(payload, stored.slice);
    Put<uint64_t>(payload, stored.chunk_crcs.size());
    for (const uint32_t crc : stored.chunk_crcs) Put(payload, crc);
  }
  Put<uint64_t>(payload, shard.files.size());
  for (const StoredFile& file : shard.files) {
    PutString(payload, file.name);
    Put(payload, file.bytes);
    Put(payload, file.checked_from);
    Put(payload, file.crc);
  }
  return Envelope(kShardMagic, payload);
}

absl::StatusOr<ShardManifest> DecodeShard(absl::string_view bytes) {
  constexpr absl::string_view kWhat = "shard record";
  NIBBLE_ASSIGN_OR_RETURN(const absl::string_view payload, PayloadOf(kShardMagic, kWhat, bytes));
  Taker taker(payload);
  ShardManifest shard;
  shard.step = taker.Take<int64_t>();
  shard.attempt = taker.Take<int64_t>();
  shard.rank = taker.Take<int32_t>();
  shard.chunk_bytes = taker.Take<int64_t>();
  const uint64_t slices = taker.TakeCount(kSmallestSlice + sizeof(uint64_t));
  for (uint64_t i = 0; i < slices && taker.ok(); ++i) {
    StoredSlice& stored = shard.slices.emplace_back();
    if (absl::Status status = TakeSlice(taker, stored.slice); !status.ok()) {
      return Malformed(kWhat, status);
    }
    stored.chunk_crcs.resize(taker.TakeCount(sizeof(uint32_t)));
    for (uint32_t& crc : stored.chunk_crcs) crc = taker.Take<uint32_t>();
  }
  constexpr size_t kSmallestFile = 3 * 8 + 4;
  const uint64_t files = taker.TakeCount(kSmallestFile);
  for (uint64_t i = 0; i < files && taker.ok(); ++i) {
    StoredFile& file = shard.files.emplace_back();
    file.name = std::string(taker.TakeString());
    file.bytes = taker.Take<int64_t>();
    file.checked_from = taker.Take<int64_t>();
    file.crc = taker.Take<uint32_t>();
  }
  if (!taker.done()) return Malformed(kWhat, NotOfItsLength());
  if (absl::Status status = CheckShard(shard); !status.ok()) return Malformed(kWhat, status);
  return shard;
}

std::string EncodeManifest(const Manifest& manifest) {
  std::string payload;
  PutHeader(payload, manifest.header);
  Put(payload, manifest.bytes());
  Put<uint64_t>(payload, manifest.shards.size());
  for (const ShardManifest& shard : manifest.shards) PutString(payload, EncodeShard(shard));
  return Envelope(kManifestMagic, payload);
}

absl::StatusOr<Manifest> DecodeManifest(absl::string_view bytes) {
  constexpr absl::string_view kWhat = "manifest";
  NIBBLE_ASSIGN_OR_RETURN(const absl::string_view payload, PayloadOf(kManifestMagic, kWhat, bytes));
  Taker taker(payload);
  Manifest manifest;
  manifest.header = TakeHeader(taker);
  const int64_t total_bytes = taker.Take<int64_t>();
  const uint64_t shards = taker.TakeCount(sizeof(uint64_t) + kEnvelopeBytes);
  for (uint64_t i = 0; i < shards && taker.ok(); ++i) {
    absl::StatusOr<ShardManifest> shard = DecodeShard(taker.TakeString());
    if (!shard.ok()) return Malformed(kWhat, shard.status());
    manifest.shards.push_back(*std::move(shard));
  }
  if (!taker.done()) return Malformed(kWhat, NotOfItsLength());
  if (absl::Status status = CheckManifest(manifest); !status.ok()) return Malformed(kWhat, status);
  if (manifest.bytes() != total_bytes) {
    return Malformed(
        kWhat, absl::DataLossError(absl::StrCat("it says ", total_bytes, " bytes, its slices have ",
                                                manifest.bytes())));
  }
  return manifest;
}

std::string EncodeHeader(const CheckpointHeader& header) {
  std::string payload;
  PutHeader(payload, header);
  return Envelope(kHeaderMagic, payload);
}

absl::StatusOr<CheckpointHeader> DecodeHeader(absl::string_view bytes) {
  constexpr absl::string_view kWhat = "checkpoint header";
  NIBBLE_ASSIGN_OR_RETURN(const absl::string_view payload, PayloadOf(kHeaderMagic, kWhat, bytes));
  Taker taker(payload);
  CheckpointHeader header = TakeHeader(taker);
  if (!taker.done()) return Malformed(kWhat, NotOfItsLength());
  return header;
}

std::string EncodeSlices(absl::Span<const TensorSlice> slices) {
  std::string payload;
  Put<uint64_t>(payload, slices.size());
  for (const TensorSlice& slice : slices) PutSlice(payload, slice);
  return Envelope(kSlicesMagic, payload);
}

absl::StatusOr<std::vector<TensorSlice>> DecodeSlices(absl::string_view bytes) {
  constexpr absl::string_view kWhat = "list of slices";
  NIBBLE_ASSIGN_OR_RETURN(const absl::string_view payload, PayloadOf(kSlicesMagic, kWhat, bytes));
  Taker taker(payload);
  std::vector<TensorSlice> slices;
  const uint64_t count = taker.TakeCount(kSmallestSlice);
  for (uint64_t i = 0; i < count && taker.ok(); ++i) {
    absl::Status status = TakeSlice(taker, slices.emplace_back());
    if (status.ok() && taker.ok()) status = CheckSlice(slices.back());
    if (!status.ok()) return Malformed(kWhat, status);
  }
  if (!taker.done()) return Malformed(kWhat, NotOfItsLength());
  return slices;
}

}  // namespace nibble
