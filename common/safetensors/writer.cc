#include "common/safetensors/writer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/bytes.h"
#include "common/files/staged_file.h"
#include "common/safetensors/dtype.h"
#include "common/safetensors/limits.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

using safetensors_internal::kMaxHeaderBytes;
using safetensors_internal::kMaxMetadataEntries;
using safetensors_internal::kMaxTensors;
using safetensors_internal::kMetadataKey;
using safetensors_internal::kPrefixBytes;
using safetensors_internal::Printable;
using safetensors_internal::QuoteName;
using safetensors_internal::ShapeString;
using safetensors_internal::TensorBytes;

// Where the payload may begin. The format asks for 8; a cache line lets vector loads be aligned.
constexpr uint64_t kPayloadAlignment = 64;

// `text` as a JSON string. nlohmann reports bytes that are not UTF-8 by throwing.
absl::StatusOr<std::string> JsonString(std::string_view text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrFormat("\"%s\" cannot be written as JSON: %s",
                                                      Printable(text), Printable(error.what())));
  }
}

// The first check of every tensor: later messages quote the name and need it to be UTF-8.
absl::Status CheckName(std::string_view name) {
  if (name == kMetadataKey) {
    return absl::InvalidArgumentError("a tensor cannot be called __metadata__");
  }
  return JsonString(name).status();
}

absl::Status CheckByteCount(std::string_view name, uint64_t actual, uint64_t expected) {
  if (actual == expected) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrFormat("tensor %s: the producer fed %d bytes of %d",
                                               QuoteName(name), actual, expected));
}

}  // namespace

absl::Status SafetensorsWriter::AddTensor(std::string_view name, FileDType dtype,
                                          absl::Span<const int64_t> shape,
                                          absl::Span<const std::byte> data) {
  NIBBLE_RETURN_IF_ERROR(CheckName(name));
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(name, dtype, shape));
  if (data.size() != bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tensor %s: %d bytes were given, but shape %s of %s needs %d", QuoteName(name), data.size(),
        ShapeString(shape), FileDTypeName(dtype), bytes));
  }
  return Add(name, dtype, shape, bytes, [data](Sink sink) { return sink(data); });
}

absl::Status SafetensorsWriter::AddStreamedTensor(std::string_view name, FileDType dtype,
                                                  absl::Span<const int64_t> shape,
                                                  Producer producer) {
  NIBBLE_RETURN_IF_ERROR(CheckName(name));
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(name, dtype, shape));
  if (producer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor %s: the producer is null", QuoteName(name)));
  }
  return Add(name, dtype, shape, bytes, std::move(producer));
}

absl::Status SafetensorsWriter::Add(std::string_view name, FileDType dtype,
                                    absl::Span<const int64_t> shape, uint64_t bytes,
                                    Producer producer) {
  if (tensors_.count(std::string(name)) > 0) {
    return absl::AlreadyExistsError(absl::StrFormat("tensor %s was added before", QuoteName(name)));
  }
  if (tensors_.size() == kMaxTensors) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "tensor %s is one above the bound of %d tensors", QuoteName(name), kMaxTensors));
  }
  tensors_.emplace(name, Tensor{dtype, ShapeString(shape), bytes, std::move(producer)});
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::AddMetadata(std::string_view key, std::string_view value) {
  if (const auto json_key = JsonString(key); !json_key.ok()) return json_key.status();
  NIBBLE_ASSIGN_OR_RETURN(std::string json_value, JsonString(value));
  if (json_metadata_.count(std::string(key)) > 0) {
    return absl::AlreadyExistsError(
        absl::StrFormat("__metadata__ key %s was set before", QuoteName(key)));
  }
  if (json_metadata_.size() == kMaxMetadataEntries) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("__metadata__ key %s is one above the bound of %d entries", QuoteName(key),
                        kMaxMetadataEntries));
  }
  json_metadata_.emplace(key, std::move(json_value));
  return absl::OkStatus();
}

std::vector<const SafetensorsWriter::NamedTensor*> SafetensorsWriter::FileOrder() const {
  std::vector<const NamedTensor*> order;
  order.reserve(tensors_.size());
  for (const NamedTensor& tensor : tensors_) order.push_back(&tensor);
  // Stable: keeps the map's order by name among equals.
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return FileDTypeSize(a->second.dtype) > FileDTypeSize(b->second.dtype);
  });
  return order;
}

absl::StatusOr<std::string> SafetensorsWriter::Header(
    absl::Span<const NamedTensor* const> tensors) const {
  std::string header(kPrefixBytes, '\0');
  header += '{';
  const char* separator = "";
  if (!json_metadata_.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, json_value] : json_metadata_) {
      absl::StrAppend(&header, separator, nlohmann::json(key).dump(), ":", json_value);
      separator = ",";
    }
    header += '}';
  }
  uint64_t begin = 0;
  for (const NamedTensor* named : tensors) {
    const auto& [name, tensor] = *named;
    constexpr uint64_t kMaxPayload = std::numeric_limits<int64_t>::max();
    if (tensor.bytes > kMaxPayload - begin) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %s: its %d bytes at offset %d pass the bound of %d",
                          QuoteName(name), tensor.bytes, begin, kMaxPayload));
    }
    absl::StrAppendFormat(&header, "%s%s:{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%d,%d]}",
                          separator, nlohmann::json(name).dump(), FileDTypeName(tensor.dtype),
                          tensor.json_shape, begin, begin + tensor.bytes);
    separator = ",";
    begin += tensor.bytes;
  }
  header += '}';
  // Spaces are the padding that the format allows.
  header.append((kPayloadAlignment - header.size() % kPayloadAlignment) % kPayloadAlignment, ' ');

  const uint64_t length = header.size() - kPrefixBytes;
  if (length > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the header needs %d bytes, above the bound of %d", length, kMaxHeaderBytes));
  }
  StoreLittle(header.data(), length);
  return header;
}

absl::Status SafetensorsWriter::Write(const std::string& path) const {
  const std::vector<const NamedTensor*> tensors = FileOrder();
  NIBBLE_ASSIGN_OR_RETURN(const std::string header, Header(tensors));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<StagedFile> file, StagedFile::Create(path));

  absl::Status status = file->Append(AsBytes(header));
  if (!status.ok()) return status;
  for (const NamedTensor* named : tensors) {
    const auto& [name, tensor] = *named;
    uint64_t fed = 0;
    // Kept here as well, so that a producer which drops the sink's error cannot hide it.
    absl::Status sink_status;
    const auto sink = [&, expected = tensor.bytes](absl::Span<const std::byte> piece) {
      if (!sink_status.ok()) return sink_status;
      fed += piece.size();
      sink_status =
          fed > expected ? CheckByteCount(named->first, fed, expected) : file->Append(piece);
      return sink_status;
    };
    status = tensor.producer(sink);
    if (!sink_status.ok()) return sink_status;
    if (!status.ok()) return status;
    status = CheckByteCount(name, fed, tensor.bytes);
    if (!status.ok()) return status;
  }
  return file->Publish();
}

}  // namespace nibble
