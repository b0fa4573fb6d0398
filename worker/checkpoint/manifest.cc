#include "worker/checkpoint/manifest.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/crc32c.h"
#include "common/safetensors/dtype.h"
#include "common/status_macros.h"

namespace nibble {

absl::StatusOr<int64_t> ShapeElements(std::span<const int64_t> shape) {
  if (static_cast<int64_t>(shape.size()) > TensorSlice::kMaxDimensions) {
    return absl::InvalidArgumentError(absl::StrCat("shape has ", shape.size(),
                                                   " dimensions; at most ",
                                                   TensorSlice::kMaxDimensions, " are allowed"));
  }
  int64_t elements = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape [", absl::StrJoin(shape, ", "), "] has a negative dimension"));
    }
    if (size == 0) {
      empty = true;
    } else if (elements > TensorSlice::kMaxBytes / size) {
      return absl::InvalidArgumentError(absl::StrCat("shape [", absl::StrJoin(shape, ", "),
                                                     "] has more than ", TensorSlice::kMaxBytes,
                                                     " elements"));
    } else {
      elements *= size;
    }
  }
  return empty ? 0 : elements;
}

absl::Status CheckSlice(const TensorSlice& slice) {
  const auto bad = [&slice](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", absl::CHexEscape(slice.name.substr(0, 64)), "\": ", what...));
  };
  if (slice.name.empty() || static_cast<int64_t>(slice.name.size()) > TensorSlice::kMaxName) {
    return bad("name has ", slice.name.size(), " characters; 1 to ", TensorSlice::kMaxName,
               " are allowed");
  }
  const auto unprintable = [](char c) { return c < ' ' || c > '~'; };
  if (std::any_of(slice.name.begin(), slice.name.end(), unprintable)) {
    return bad("name has a character that is not printable ASCII");
  }
  const int element = FileDTypeSize(slice.dtype);
  if (element == 0) return bad("dtype ", static_cast<int>(slice.dtype), " does not exist");
  const absl::StatusOr<int64_t> elements = ShapeElements(slice.shape);
  if (!elements.ok()) return bad(elements.status().message());
  if (*elements > TensorSlice::kMaxBytes / element) {
    return bad("has ", *elements, " elements of ", element, " bytes, more than ",
               TensorSlice::kMaxBytes, " bytes");
  }
  if (slice.first < 0 || slice.count < 0 || slice.first > *elements ||
      slice.count > *elements - slice.first) {
    return bad("elements [", slice.first, ", ", slice.first, " + ", slice.count,
               ") are not inside [0, ", *elements, ")");
  }
  return absl::OkStatus();
}

int64_t SliceBytes(const TensorSlice& slice) { return slice.count * FileDTypeSize(slice.dtype); }

int64_t ChunksOf(int64_t bytes, int64_t chunk_bytes) {
  return bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0);
}

absl::Status CheckChunkCrc(const StoredSlice& slice, int64_t chunk,
                           absl::Span<const std::byte> bytes) {
  const uint32_t crc = Crc32c(bytes);
  const uint32_t wanted = slice.chunk_crcs[static_cast<size_t>(chunk)];
  if (crc == wanted) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("its checksum is 0x", absl::Hex(crc),
                                          ", the manifest has 0x", absl::Hex(wanted)));
}

namespace {

absl::Status CheckName(absl::string_view field, const std::string& value) {
  if (static_cast<int64_t>(value.size()) > StoreIdentity::kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(field, " has ", value.size(), " bytes; at most ",
                                                   StoreIdentity::kMaxBytes, " are allowed"));
  }
  const auto control = [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; };
  if (std::any_of(value.begin(), value.end(), control)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " \"", absl::CHexEscape(value), "\" has a control character"));
  }
  return absl::OkStatus();
}

template <class... What>
absl::Status Bad(const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat(what...));
}

}  // namespace

std::string ToString(const StoreIdentity& identity) {
  return absl::StrCat("job \"", identity.job, "\" of ",
                      identity.cluster.empty()
                          ? std::string("no cluster")
                          : absl::StrCat("cluster \"", identity.cluster, "\""));
}

absl::Status CheckIdentity(const StoreIdentity& identity) {
  if (identity.job.empty()) return Bad("job is empty; a store belongs to a job");
  NIBBLE_RETURN_IF_ERROR(CheckName("job", identity.job));
  return CheckName("cluster", identity.cluster);
}

int64_t ShardManifest::bytes() const {
  int64_t sum = 0;
  for (const StoredSlice& stored : slices) sum += SliceBytes(stored.slice);
  return sum;
}

int64_t Manifest::bytes() const {
  int64_t sum = 0;
  for (const ShardManifest& shard : shards) sum += shard.bytes();
  return sum;
}

absl::StatusOr<Manifest> MakeManifest(CheckpointHeader header, std::vector<ShardManifest> shards) {
  std::sort(shards.begin(), shards.end(),
            [](const ShardManifest& a, const ShardManifest& b) { return a.rank < b.rank; });
  Manifest manifest = {std::move(header), std::move(shards)};
  NIBBLE_RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

absl::Status CheckShard(const ShardManifest& shard) {
  if (shard.step < 0) return Bad("step is ", shard.step, "; at least 0 is allowed");
  if (shard.attempt < 1) return Bad("attempt is ", shard.attempt, "; at least 1 is allowed");
  if (shard.rank < 0 || shard.rank >= ShardManifest::kMaxRanks) {
    return Bad("rank is ", shard.rank, "; 0 to ", ShardManifest::kMaxRanks - 1, " are allowed");
  }
  if (shard.chunk_bytes < 1) {
    return Bad("chunk_bytes is ", shard.chunk_bytes, "; at least 1 is allowed");
  }
  int64_t bytes = 0;
  for (const StoredSlice& stored : shard.slices) {
    NIBBLE_RETURN_IF_ERROR(CheckSlice(stored.slice));
    const int64_t slice_bytes = SliceBytes(stored.slice);
    if (slice_bytes > std::numeric_limits<int64_t>::max() - bytes) {
      return Bad("rank ", shard.rank, " holds more bytes than can be counted");
    }
    bytes += slice_bytes;
    const int64_t chunks = ChunksOf(slice_bytes, shard.chunk_bytes);
    if (static_cast<int64_t>(stored.chunk_crcs.size()) != chunks) {
      return Bad("tensor \"", stored.slice.name, "\" of rank ", shard.rank, " has ",
                 stored.chunk_crcs.size(), " checksums for ", chunks, " chunks");
    }
  }
  for (const StoredFile& file : shard.files) {
    if (file.name.empty() || file.name.find('/') != std::string::npos || file.name == "." ||
        file.name == "..") {
      return Bad("file name \"", absl::CHexEscape(file.name), "\" of rank ", shard.rank,
                 " is not one of a file in its directory");
    }
    if (file.checked_from < 0 || file.checked_from > file.bytes) {
      return Bad("file ", file.name, " of rank ", shard.rank, " is checked from ",
                 file.checked_from, "; 0 to its ", file.bytes, " bytes are allowed");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckManifest(const Manifest& manifest) {
  const CheckpointHeader& header = manifest.header;
  NIBBLE_RETURN_IF_ERROR(CheckIdentity(header.identity));
  if (header.step < 0) return Bad("step is ", header.step, "; at least 0 is allowed");
  if (header.attempt < 1) return Bad("attempt is ", header.attempt, "; at least 1 is allowed");
  if (header.data_position < 0) {
    return Bad("data_position is ", header.data_position, "; at least 0 is allowed");
  }
  if (header.world < 1 || header.world > ShardManifest::kMaxRanks) {
    return Bad("world is ", header.world, "; 1 to ", ShardManifest::kMaxRanks, " are allowed");
  }
  if (static_cast<int64_t>(manifest.shards.size()) != header.world) {
    return Bad("world is ", header.world, " but ", manifest.shards.size(), " shards are given");
  }
  for (int32_t rank = 0; rank < header.world; ++rank) {
    const ShardManifest& shard = manifest.shards[rank];
    NIBBLE_RETURN_IF_ERROR(CheckShard(shard));
    if (shard.rank != rank) {
      return Bad("shard ", rank, " of ", header.world, " is of rank ", shard.rank,
                 "; each rank from 0 has one shard");
    }
    if (shard.step != header.step || shard.attempt != header.attempt) {
      return Bad("shard of rank ", rank, " is of step ", shard.step, ", attempt ", shard.attempt,
                 "; the checkpoint is of step ", header.step, ", attempt ", header.attempt);
    }
  }
  return IndexTensors(manifest.shards).status();
}

absl::StatusOr<absl::flat_hash_map<std::string, TensorEntry>> IndexTensors(
    const std::vector<ShardManifest>& shards) {
  absl::flat_hash_map<std::string, TensorEntry> tensors;
  for (const ShardManifest& shard : shards) {
    for (size_t i = 0; i < shard.slices.size(); ++i) {
      const TensorSlice& slice = shard.slices[i].slice;
      const auto [found, is_new] = tensors.try_emplace(slice.name);
      TensorEntry& entry = found->second;
      if (is_new) {
        NIBBLE_ASSIGN_OR_RETURN(const int64_t elements, ShapeElements(slice.shape));
        entry = {slice.dtype, slice.shape, elements, {}};
      } else if (entry.dtype != slice.dtype || entry.shape != slice.shape) {
        return Bad("tensor \"", slice.name, "\" is ", std::string(FileDTypeName(entry.dtype)), " [",
                   absl::StrJoin(entry.shape, ", "), "] in one slice and ",
                   std::string(FileDTypeName(slice.dtype)), " [", absl::StrJoin(slice.shape, ", "),
                   "] in that of rank ", shard.rank);
      }
      if (slice.count > 0) {
        entry.pieces.push_back({slice.first, slice.count, shard.rank, static_cast<int32_t>(i)});
      }
    }
  }
  for (auto& [name, entry] : tensors) {
    std::sort(entry.pieces.begin(), entry.pieces.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    int64_t covered = 0;
    for (const TensorEntry::Piece& piece : entry.pieces) {
      if (piece.first != covered) {
        return Bad("tensor \"", name, "\": element ", std::min(covered, piece.first),
                   piece.first > covered ? " is in no slice" : " is in two slices",
                   "; the slice of rank ", piece.rank, " begins at ", piece.first);
      }
      covered += piece.count;
    }
    if (covered != entry.elements) {
      return Bad("tensor \"", name, "\": element ", covered, " of ", entry.elements,
                 " is in no slice");
    }
  }
  return tensors;
}

}  // namespace nibble
