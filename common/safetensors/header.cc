#include "common/safetensors/header.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/safetensors/dtype.h"
#include "common/safetensors/limits.h"

namespace nibble::safetensors_internal {
namespace {

using Json = nlohmann::json;

// A state machine over the parser's events. Every method returns false to stop the parser, with
// the reason in status_; an event that no state expects is refused, which also bounds the depth.
class HeaderHandler final : public nlohmann::json_sax<Json> {
 public:
  const absl::Status& status() const { return status_; }
  Header TakeHeader() { return std::move(header_); }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool value) override { return Unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return BadNumber(absl::StrCat(value)); }
  bool number_unsigned(number_unsigned_t value) override;
  // Called for fractions and exponents, and for integers beyond 64 bits.
  bool number_float(number_float_t, const string_t& text) override { return BadNumber(text); }
  bool string(string_t& value) override;
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool start_object(std::size_t) override;
  bool key(string_t& value) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return Fail(absl::StrFormat("the header is not valid JSON at byte %d: %s", position,
                                Printable(error.what())));
  }

 private:
  enum class State {
    kStart,          // nothing read
    kTop,            // in the outer object, between entries
    kMetadata,       // "__metadata__" read, its object expected
    kMetadataKey,    // in that object, between entries
    kMetadataValue,  // a key of it read
    kEntry,          // a tensor's name read, its object expected
    kEntryKey,       // in that object, between fields
    kDType,          // "dtype" read
    kShape,          // "shape" read, its array expected
    kShapeItem,      // in that array
    kOffsets,        // "data_offsets" read, its array expected
    kOffsetsItem,    // in that array
  };

  uint64_t MaxNumber() const {
    return state_ == State::kShapeItem ? std::numeric_limits<int64_t>::max()
                                       : std::numeric_limits<uint64_t>::max();
  }
  bool Fail(std::string message) {
    status_ = absl::InvalidArgumentError(message);
    return false;
  }
  bool Unexpected(std::string_view what) {
    return Fail(absl::StrFormat("%s, found %s", Where(), what));
  }
  // Refuses a number that is out of range or of place.
  bool BadNumber(std::string_view text);
  // What is being read, as the beginning of an error message.
  std::string Where() const;
  std::string Tensor() const { return absl::StrCat("tensor ", QuoteName(entry_.name)); }
  // Refuses a field's second occurrence, else moves to `next`.
  bool BeginField(bool& seen, std::string_view field, State next);

  State state_ = State::kStart;
  Header header_;
  bool seen_metadata_ = false;
  std::string metadata_key_;
  // The entry being read, and which of its fields have been.
  HeaderEntry entry_;
  bool seen_dtype_ = false;
  bool seen_shape_ = false;
  bool seen_offsets_ = false;
  int offsets_read_ = 0;
  absl::Status status_;
};

std::string HeaderHandler::Where() const {
  switch (state_) {
    case State::kMetadata:
    case State::kMetadataKey:
      return "__metadata__ must be an object of strings";
    case State::kMetadataValue:
      return absl::StrFormat("__metadata__ key %s must have a string", QuoteName(metadata_key_));
    case State::kEntry:
    case State::kEntryKey:
      return Tensor() + " must be an object";
    case State::kDType:
      return Tensor() + ": dtype must be a string";
    case State::kShape:
      return Tensor() + ": shape must be an array";
    case State::kShapeItem:
      return Tensor() + ": shape, an array of integers,";
    case State::kOffsets:
      return Tensor() + ": data_offsets must be an array";
    case State::kOffsetsItem:
      return Tensor() + ": data_offsets, an array of integers,";
    case State::kStart:
    case State::kTop:
      break;
  }
  return "the header must be one object";
}

bool HeaderHandler::BadNumber(std::string_view text) {
  if (state_ == State::kShapeItem || state_ == State::kOffsetsItem) {
    return Fail(absl::StrFormat("%s holds %s, which is not an integer from 0 to %d", Where(),
                                Printable(text), MaxNumber()));
  }
  return Unexpected(absl::StrCat("the number ", Printable(text)));
}

bool HeaderHandler::number_unsigned(number_unsigned_t value) {
  if (state_ == State::kShapeItem) {
    if (value > MaxNumber()) return BadNumber(absl::StrCat(value));
    if (entry_.shape.size() == kMaxRank) {
      return Fail(absl::StrFormat("%s: rank is above the bound of %d", Tensor(), kMaxRank));
    }
    entry_.shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  if (state_ == State::kOffsetsItem) {
    if (offsets_read_ == 2) {
      return Fail(absl::StrFormat("%s: data_offsets holds a third number %d, must hold 2", Tensor(),
                                  value));
    }
    (offsets_read_ == 0 ? entry_.begin : entry_.end) = value;
    ++offsets_read_;
    return true;
  }
  return BadNumber(absl::StrCat(value));
}

bool HeaderHandler::string(string_t& value) {
  if (state_ == State::kMetadataValue) {
    header_.metadata.emplace(std::move(metadata_key_), std::move(value));
    state_ = State::kMetadataKey;
    return true;
  }
  if (state_ == State::kDType) {
    const std::optional<FileDType> dtype = FileDTypeFromName(value);
    if (!dtype.has_value()) {
      return Fail(absl::StrFormat("%s: dtype %s is not known", Tensor(), QuoteName(value)));
    }
    entry_.dtype = *dtype;
    state_ = State::kEntryKey;
    return true;
  }
  return Unexpected(absl::StrCat("the string ", QuoteName(value)));
}

bool HeaderHandler::start_object(std::size_t) {
  switch (state_) {
    case State::kStart:
      state_ = State::kTop;
      return true;
    case State::kMetadata:
      state_ = State::kMetadataKey;
      return true;
    case State::kEntry:
      state_ = State::kEntryKey;
      return true;
    default:
      return Unexpected("an object");
  }
}

bool HeaderHandler::BeginField(bool& seen, std::string_view field, State next) {
  if (seen) {
    return Fail(absl::StrFormat("%s: field %s occurs twice", Tensor(), field));
  }
  seen = true;
  state_ = next;
  return true;
}

bool HeaderHandler::key(string_t& value) {
  if (state_ == State::kTop && value == kMetadataKey) {
    if (seen_metadata_) return Fail("__metadata__ occurs twice");
    seen_metadata_ = true;
    state_ = State::kMetadata;
    return true;
  }
  if (state_ == State::kTop) {
    if (header_.entries.size() == kMaxTensors) {
      return Fail(absl::StrFormat("tensor %s is one above the bound of %d tensors",
                                  QuoteName(value), kMaxTensors));
    }
    entry_ = HeaderEntry();
    entry_.name = std::move(value);
    seen_dtype_ = seen_shape_ = seen_offsets_ = false;
    offsets_read_ = 0;
    state_ = State::kEntry;
    return true;
  }
  if (state_ == State::kMetadataKey) {
    if (header_.metadata.contains(value)) {
      return Fail(absl::StrFormat("__metadata__ key %s occurs twice", QuoteName(value)));
    }
    if (header_.metadata.size() == kMaxMetadataEntries) {
      return Fail(absl::StrFormat("__metadata__ key %s is one above the bound of %d entries",
                                  QuoteName(value), kMaxMetadataEntries));
    }
    metadata_key_ = std::move(value);
    state_ = State::kMetadataValue;
    return true;
  }
  if (value == "dtype") return BeginField(seen_dtype_, "dtype", State::kDType);
  if (value == "shape") return BeginField(seen_shape_, "shape", State::kShape);
  if (value == "data_offsets") return BeginField(seen_offsets_, "data_offsets", State::kOffsets);
  return Fail(absl::StrFormat("%s: field %s is not one of dtype, shape, data_offsets", Tensor(),
                              QuoteName(value)));
}

bool HeaderHandler::end_object() {
  if (state_ == State::kTop) return true;  // the parser lets nothing but blanks follow
  if (state_ == State::kMetadataKey) {
    state_ = State::kTop;
    return true;
  }
  const char* missing = !seen_dtype_     ? "dtype"
                        : !seen_shape_   ? "shape"
                        : !seen_offsets_ ? "data_offsets"
                                         : nullptr;
  if (missing != nullptr) {
    return Fail(absl::StrFormat("%s: field %s is missing", Tensor(), missing));
  }
  header_.entries.push_back(std::move(entry_));
  state_ = State::kTop;
  return true;
}

bool HeaderHandler::start_array(std::size_t) {
  if (state_ == State::kShape || state_ == State::kOffsets) {
    state_ = state_ == State::kShape ? State::kShapeItem : State::kOffsetsItem;
    return true;
  }
  return Unexpected("an array");
}

bool HeaderHandler::end_array() {
  if (state_ == State::kOffsetsItem && offsets_read_ != 2) {
    return Fail(
        absl::StrFormat("%s: data_offsets holds %d numbers, must hold 2", Tensor(), offsets_read_));
  }
  state_ = State::kEntryKey;
  return true;
}

}  // namespace

absl::StatusOr<Header> ParseHeader(std::string_view text) {
  if (text.empty() || text[0] != '{') {
    return absl::InvalidArgumentError(
        absl::StrFormat("the header's %d bytes begin with \"%s\", must begin with '{'", text.size(),
                        Printable(text.substr(0, 1))));
  }
  // nlohmann takes a NUL byte for the end of its input and would not look at what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the header holds a NUL at byte %d of %d, which JSON does not allow", nul, text.size()));
  }
  HeaderHandler handler;
  try {
    if (!Json::sax_parse(text.begin(), text.end(), &handler)) return handler.status();
  } catch (const std::exception& error) {
    // Out of memory is the only one known; none may cross into code built without exceptions.
    return absl::ResourceExhaustedError(absl::StrFormat("reading a header of %d bytes failed: %s",
                                                        text.size(), Printable(error.what())));
  }
  return handler.TakeHeader();
}

}  // namespace nibble::safetensors_internal
