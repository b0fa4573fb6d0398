// Manifests as bytes: what the files MANIFEST (a checkpoint) and shard-00000.seal (one shard) hold,
// see docs/formats/checkpoint-store.md. Equal values give equal bytes.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_CHECKPOINT_MANIFEST_CODEC_H_
#define NIBBLE_WORKER_CHECKPOINT_MANIFEST_CODEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/tensor_slice.h"

namespace nibble {

inline constexpr uint32_t kManifestVersion = 1;

// The values are valid (CheckShard, CheckManifest).
std::string EncodeShard(const ShardManifest& shard);
std::string EncodeManifest(const Manifest& manifest);

// DataLoss for bytes that were not written by these functions: every damage is found, by the
// checksum or by what the bytes say. FailedPrecondition for those of a newer version. What comes
// out is valid.
absl::StatusOr<ShardManifest> DecodeShard(absl::string_view bytes);
absl::StatusOr<Manifest> DecodeManifest(absl::string_view bytes);

// Parts that travel between processes before there is a manifest. Errors as above; a header is not
// checked beyond its form.
std::string EncodeHeader(const CheckpointHeader& header);
absl::StatusOr<CheckpointHeader> DecodeHeader(absl::string_view bytes);
std::string EncodeSlices(absl::Span<const TensorSlice> slices);
absl::StatusOr<std::vector<TensorSlice>> DecodeSlices(absl::string_view bytes);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_MANIFEST_CODEC_H_
