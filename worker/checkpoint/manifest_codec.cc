// The encoding of manifests (docs/formats/checkpoint-store.md).
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/bytes.h"
#include "common/crc32c.h"
#include "common/safetensors/dtype.h"
#include "common/status_macros.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {
namespace {

// A record: magic, version, length of the payload, payload, CRC-32C of all bytes before it.
constexpr absl::string_view kShardMagic = "NBSHARD1";
constexpr absl::string_view kManifestMagic = "NBCHKPT1";
constexpr absl::string_view kHeaderMagic = "NBHEADR1";
constexpr absl::string_view kSlicesMagic = "NBSLICE1";
constexpr size_t kMagicBytes = 8;
constexpr size_t kEnvelopeBytes = kMagicBytes + 4 + 8 + 4;

void PutString(std::string& out, absl::string_view value) {
  AppendLittle<uint64_t>(out, value.size());
  out.append(value.data(), value.size());
}

std::string Envelope(absl::string_view magic, absl::string_view payload,
                     uint32_t version = kManifestVersionWithoutProducts) {
  std::string record(magic);
  AppendLittle(record, version);
  PutString(record, payload);
  AppendLittle(record, Crc32c(absl::string_view(record)));
  return record;
}

// Reads values from the front of some bytes; after the first missing value, every read fails.
class RecordReader {
 public:
  explicit RecordReader(absl::string_view bytes) : rest_(bytes) {}

  template <class T>
  T Read() {
    const absl::string_view bytes = ReadBytes(sizeof(T));
    return ok_ ? LoadLittle<T>(bytes.data()) : T{0};
  }
  absl::string_view ReadBytes(uint64_t count) {
    if (count > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const absl::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }
  absl::string_view ReadString() { return ReadBytes(Read<uint64_t>()); }
  // A count of items that each take at least `bytes_each` more bytes.
  uint64_t ReadCount(size_t bytes_each) {
    const uint64_t count = Read<uint64_t>();
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

struct Payload {
  absl::string_view bytes;
  uint32_t version;
};

absl::StatusOr<Payload> PayloadOf(absl::string_view magic, absl::string_view what,
                                  absl::string_view bytes) {
  if (bytes.size() < kEnvelopeBytes) {
    return absl::DataLossError(absl::StrCat(what, " has ", bytes.size(),
                                            " bytes, fewer than the smallest, ", kEnvelopeBytes));
  }
  const absl::string_view covered = bytes.substr(0, bytes.size() - 4);
  const uint32_t stored = RecordReader(bytes.substr(covered.size())).Read<uint32_t>();
  if (const uint32_t found = Crc32c(covered); found != stored) {
    return absl::DataLossError(absl::StrCat(what, " has checksum 0x", absl::Hex(found),
                                            ", the one stored with it is 0x", absl::Hex(stored)));
  }
  RecordReader reader(covered);
  if (reader.ReadBytes(kMagicBytes) != magic) {
    return absl::DataLossError(absl::StrCat(what, " does not begin with ", magic));
  }
  const uint32_t version = reader.Read<uint32_t>();
  if (version < kManifestVersionWithoutProducts || version > kManifestVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " is of format version ", version, "; this program reads versions ",
                     kManifestVersionWithoutProducts, " to ", kManifestVersion));
  }
  const absl::string_view payload = reader.ReadString();
  if (!reader.done()) {
    return absl::DataLossError(absl::StrCat(what, " does not have the length that it states"));
  }
  return Payload{payload, version};
}

// The checksum is right, so a faulty program wrote these values.
absl::Status Malformed(absl::string_view what, const absl::Status& why) {
  return absl::DataLossError(absl::StrCat(what, " is malformed: ", why.message()));
}

void PutHeader(std::string& out, const CheckpointHeader& header) {
  PutString(out, header.identity.cluster);
  PutString(out, header.identity.job);
  AppendLittle(out, header.step);
  AppendLittle(out, header.attempt);
  AppendLittle(out, header.data_position);
  AppendLittle(out, header.seed);
  AppendLittle(out, header.formula_version);
  AppendLittle(out, header.world);
  AppendLittle(out, header.time_unix_nanos);
  PutString(out, header.recipe_timeline);
  PutString(out, header.spec);
  if (!header.products.empty()) PutString(out, header.products);
}

// The version of a record with this header.
uint32_t VersionOf(const CheckpointHeader& header) {
  return header.products.empty() ? kManifestVersionWithoutProducts : kManifestVersion;
}

CheckpointHeader ReadHeader(RecordReader& reader, uint32_t version) {
  CheckpointHeader header;
  header.identity.cluster = std::string(reader.ReadString());
  header.identity.job = std::string(reader.ReadString());
  header.step = reader.Read<int64_t>();
  header.attempt = reader.Read<int64_t>();
  header.data_position = reader.Read<int64_t>();
  header.seed = reader.Read<uint64_t>();
  header.formula_version = reader.Read<int32_t>();
  header.world = reader.Read<int32_t>();
  header.time_unix_nanos = reader.Read<int64_t>();
  header.recipe_timeline = std::string(reader.ReadString());
  header.spec = std::string(reader.ReadString());
  if (version > kManifestVersionWithoutProducts) {
    header.products = std::string(reader.ReadString());
  }
  return header;
}

constexpr size_t kSmallestSlice = 5 * 8;

void PutSlice(std::string& out, const TensorSlice& slice) {
  PutString(out, slice.name);
  PutString(out, std::string(FileDTypeName(slice.dtype)));
  AppendLittle<uint64_t>(out, slice.shape.size());
  for (const int64_t size : slice.shape) AppendLittle(out, size);
  AppendLittle(out, slice.first);
  AppendLittle(out, slice.count);
}

// DataLoss for an unknown dtype; the caller checks other bounds.
absl::Status ReadSlice(RecordReader& reader, TensorSlice& slice) {
  slice.name = std::string(reader.ReadString());
  const std::string dtype(reader.ReadString());
  const std::optional<FileDType> known = FileDTypeFromName(dtype);
  if (reader.ok() && !known.has_value()) {
    return absl::DataLossError(absl::StrCat("dtype ", dtype, " is not known"));
  }
  slice.dtype = known.value_or(FileDType::kF32);
  slice.shape.resize(reader.ReadCount(sizeof(int64_t)));
  for (int64_t& size : slice.shape) size = reader.Read<int64_t>();
  slice.first = reader.Read<int64_t>();
  slice.count = reader.Read<int64_t>();
  return absl::OkStatus();
}

absl::Status WrongLength() { return absl::DataLossError("its fields do not fill its length"); }

}  // namespace

std::string EncodeShard(const ShardManifest& shard) {
  std::string payload;
  AppendLittle(payload, shard.step);
  AppendLittle(payload, shard.attempt);
  AppendLittle(payload, shard.rank);
  AppendLittle(payload, shard.chunk_bytes);
  AppendLittle<uint64_t>(payload, shard.slices.size());
  for (const StoredSlice& stored : shard.slices) {
    PutSlice(payload, stored.slice);
    AppendLittle<uint64_t>(payload, stored.chunk_crcs.size());
    for (const uint32_t crc : stored.chunk_crcs) AppendLittle(payload, crc);
  }
  AppendLittle<uint64_t>(payload, shard.files.size());
  for (const StoredFile& file : shard.files) {
    PutString(payload, file.name);
    AppendLittle(payload, file.bytes);
    AppendLittle(payload, file.checked_from);
    AppendLittle(payload, file.crc);
  }
  return Envelope(kShardMagic, payload);
}

absl::StatusOr<ShardManifest> DecodeShard(absl::string_view bytes) {
  constexpr absl::string_view kWhat = "shard record";
  NIBBLE_ASSIGN_OR_RETURN(const Payload payload, PayloadOf(kShardMagic, kWhat, bytes));
  RecordReader reader(payload.bytes);
  ShardManifest shard;
  shard.step = reader.Read<int64_t>();
  shard.attempt = reader.Read<int64_t>();
  shard.rank = reader.Read<int32_t>();
  shard.chunk_bytes = reader.Read<int64_t>();
  const uint64_t slices = reader.ReadCount(kSmallestSlice + sizeof(uint64_t));
  for (uint64_t i = 0; i < slices && reader.ok(); ++i) {
    StoredSlice& stored = shard.slices.emplace_back();
    if (absl::Status status = ReadSlice(reader, stored.slice); !status.ok()) {
      return Malformed(kWhat, status);
    }
    stored.chunk_crcs.resize(reader.ReadCount(sizeof(uint32_t)));
    for (uint32_t& crc : stored.chunk_crcs) crc = reader.Read<uint32_t>();
  }
  constexpr size_t kSmallestFile = 3 * 8 + 4;
  const uint64_t files = reader.ReadCount(kSmallestFile);
  for (uint64_t i = 0; i < files && reader.ok(); ++i) {
    StoredFile& file = shard.files.emplace_back();
    file.name = std::string(reader.ReadString());
    file.bytes = reader.Read<int64_t>();
    file.checked_from = reader.Read<int64_t>();
    file.crc = reader.Read<uint32_t>();
  }
  if (!reader.done()) return Malformed(kWhat, WrongLength());
  if (absl::Status status = CheckShard(shard); !status.ok()) return Malformed(kWhat, status);
  return shard;
}

std::string EncodeManifest(const Manifest& manifest) {
  std::string payload;
  PutHeader(payload, manifest.header);
  AppendLittle(payload, manifest.bytes());
  AppendLittle<uint64_t>(payload, manifest.shards.size());
  for (const ShardManifest& shard : manifest.shards) PutString(payload, EncodeShard(shard));
  return Envelope(kManifestMagic, payload, VersionOf(manifest.header));
}

absl::StatusOr<Manifest> DecodeManifest(absl::string_view bytes) {
  constexpr absl::string_view kWhat = "manifest";
  NIBBLE_ASSIGN_OR_RETURN(const Payload payload, PayloadOf(kManifestMagic, kWhat, bytes));
  RecordReader reader(payload.bytes);
  Manifest manifest;
  manifest.header = ReadHeader(reader, payload.version);
  const int64_t total_bytes = reader.Read<int64_t>();
  const uint64_t shards = reader.ReadCount(sizeof(uint64_t) + kEnvelopeBytes);
  for (uint64_t i = 0; i < shards && reader.ok(); ++i) {
    absl::StatusOr<ShardManifest> shard = DecodeShard(reader.ReadString());
    if (!shard.ok()) return Malformed(kWhat, shard.status());
    manifest.shards.push_back(*std::move(shard));
  }
  if (!reader.done()) return Malformed(kWhat, WrongLength());
  if (absl::Status status = CheckManifest(manifest); !status.ok()) return Malformed(kWhat, status);
  if (manifest.bytes() != total_bytes) {
    return Malformed(
        kWhat, absl::DataLossError(absl::StrCat("it states ", total_bytes,
                                                " bytes, its slices have ", manifest.bytes())));
  }
  return manifest;
}

std::string EncodeHeader(const CheckpointHeader& header) {
  std::string payload;
  PutHeader(payload, header);
  return Envelope(kHeaderMagic, payload, VersionOf(header));
}

absl::StatusOr<CheckpointHeader> DecodeHeader(absl::string_view bytes) {
  constexpr absl::string_view kWhat = "checkpoint header";
  NIBBLE_ASSIGN_OR_RETURN(const Payload payload, PayloadOf(kHeaderMagic, kWhat, bytes));
  RecordReader reader(payload.bytes);
  CheckpointHeader header = ReadHeader(reader, payload.version);
  if (!reader.done()) return Malformed(kWhat, WrongLength());
  return header;
}

std::string EncodeSlices(absl::Span<const TensorSlice> slices) {
  std::string payload;
  AppendLittle<uint64_t>(payload, slices.size());
  for (const TensorSlice& slice : slices) PutSlice(payload, slice);
  return Envelope(kSlicesMagic, payload);
}

absl::StatusOr<std::vector<TensorSlice>> DecodeSlices(absl::string_view bytes) {
  constexpr absl::string_view kWhat = "list of slices";
  NIBBLE_ASSIGN_OR_RETURN(const Payload payload, PayloadOf(kSlicesMagic, kWhat, bytes));
  RecordReader reader(payload.bytes);
  std::vector<TensorSlice> slices;
  const uint64_t count = reader.ReadCount(kSmallestSlice);
  for (uint64_t i = 0; i < count && reader.ok(); ++i) {
    absl::Status status = ReadSlice(reader, slices.emplace_back());
    if (status.ok() && reader.ok()) status = CheckSlice(slices.back());
    if (!status.ok()) return Malformed(kWhat, status);
  }
  if (!reader.done()) return Malformed(kWhat, WrongLength());
  return slices;
}

}  // namespace nibble
