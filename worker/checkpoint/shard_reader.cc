#include "worker/checkpoint/shard_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "worker/checkpoint/disk.h"
#include "worker/checkpoint/manifest_codec.h"
#include "worker/checkpoint/shard_files.h"
#include "worker/checkpoint/store_layout.h"
#include "worker/checkpoint/tensor_slice.h"

namespace nibble {

absl::StatusOr<ShardManifest> ReadSeal(const std::string& directory, int32_t rank) {
  const std::string path = absl::StrCat(directory, "/", SealFileName(rank));
  const absl::StatusOr<std::string> record = ReadWholeFile(path);
  if (!record.ok()) return record.status();
  absl::StatusOr<ShardManifest> seal = DecodeShard(*record);
  if (!seal.ok()) {
    return absl::Status(seal.status().code(),
                        absl::StrCat(path, ": ", std::string(seal.status().message())));
  }
  const absl::Status status =
      CheckShardFiles(absl::StrCat(directory, "/", ShardDirectoryName(rank)), seal->files);
  if (!status.ok()) return status;
  return seal;
}

absl::StatusOr<std::unique_ptr<ShardReader>> ShardReader::Open(const std::string& directory,
                                                               int32_t rank) {
  absl::StatusOr<ShardManifest> seal = ReadSeal(directory, rank);
  if (!seal.ok()) return seal.status();
  absl::StatusOr<std::unique_ptr<ShardDb>> db =
      ShardDb::OpenToRead(absl::StrCat(directory, "/", ShardDirectoryName(rank)));
  if (!db.ok()) return db.status();
  return std::unique_ptr<ShardReader>(new ShardReader(*std::move(seal), *std::move(db)));
}

absl::Status ShardReader::ReadChunk(size_t slice, int64_t chunk, int64_t from,
                                    absl::Span<std::byte> out) const {
  const StoredSlice& stored = manifest_.slices[slice];
  const auto fail = [&](const auto&... why) {
    return absl::DataLossError(absl::StrCat("step ", manifest_.step, ", tensor \"",
                                            stored.slice.name, "\", chunk ", chunk, " of rank ",
                                            manifest_.rank, ": ", why...));
  };
  const absl::Status status = db_->ReadChunk(
      static_cast<int32_t>(slice), chunk, [&](absl::Span<const std::byte> bytes) -> absl::Status {
        const uint32_t crc = Crc32c(bytes);
        const uint32_t wanted = stored.chunk_crcs[static_cast<size_t>(chunk)];
        if (crc != wanted) {
          return absl::DataLossError(absl::StrCat("its checksum is 0x", absl::Hex(crc),
                                                  ", the manifest says 0x", absl::Hex(wanted)));
        }
        if (from + static_cast<int64_t>(out.size()) > static_cast<int64_t>(bytes.size())) {
          return absl::DataLossError(absl::StrCat("it has ", bytes.size(), " bytes"));
        }
        if (!out.empty()) std::memcpy(out.data(), bytes.data() + from, out.size());
        return absl::OkStatus();
      });
  return status.ok() ? status : fail(std::string(status.message()));
}

absl::Status ShardReader::Read(int64_t from, absl::Span<std::byte> out) const {
  const int64_t all = manifest_.bytes();
  const auto count = static_cast<int64_t>(out.size());
  if (from < 0 || from > all || count > all - from) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes [", from, ", ", from, " + ", count, ") are outside ", all));
  }
  const int64_t until = from + count;
  int64_t slice_begin = 0;
  for (size_t slice = 0; slice < manifest_.slices.size() && slice_begin < until; ++slice) {
    const int64_t slice_end = slice_begin + SliceBytes(manifest_.slices[slice].slice);
    int64_t at = std::max(from, slice_begin);
    while (at < std::min(until, slice_end)) {
      const int64_t chunk = (at - slice_begin) / manifest_.chunk_bytes;
      const int64_t chunk_begin = slice_begin + chunk * manifest_.chunk_bytes;
      const int64_t end = std::min({until, slice_end, chunk_begin + manifest_.chunk_bytes});
      const absl::Status status =
          ReadChunk(slice, chunk, at - chunk_begin,
                    out.subspan(static_cast<size_t>(at - from), static_cast<size_t>(end - at)));
      if (!status.ok()) return status;
      at = end;
    }
    slice_begin = slice_end;
  }
  return absl::OkStatus();
}

absl::Status ShardReader::Verify(int64_t& chunks) const {
  chunks = 0;
  for (size_t slice = 0; slice < manifest_.slices.size(); ++slice) {
    for (size_t chunk = 0; chunk < manifest_.slices[slice].chunk_crcs.size(); ++chunk) {
      ++chunks;
      const absl::Status status = ReadChunk(slice, static_cast<int64_t>(chunk), 0, {});
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble
