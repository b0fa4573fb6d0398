// The JSON files of others, such as a model directory's, read with distrust: bounded in size and depth, no key twice.
//
// Ownership: results own everything. Thread-safety: pure functions of the text or the file.
#ifndef NIBBLE_COMMON_JSON_TEXT_H_
#define NIBBLE_COMMON_JSON_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace nibble {

// An object tree takes up to some twenty times its text: these keep it below 200 MB.
inline constexpr size_t kMaxConfigBytes = size_t{1} << 20;
inline constexpr size_t kMaxIndexBytes = size_t{1} << 23;
inline constexpr int kMaxJsonDepth = 16;

// All of a regular file. FailedPrecondition where it is longer than `max_bytes` or no regular file;
// otherwise what the system said: NotFound, ...
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

// The text of an object. Python writes infinities and NaN as bare words, which JSON has not; they
// are read as {"__float__": "Infinity"}, the way newer files spell them.
//
// InvalidArgument, beginning with `name`, for what is no object, is nested deeper than
// kMaxJsonDepth, or has a key twice.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view name, std::string_view text);

// A value for a message: on one line, printable, cut after 80 bytes.
std::string BriefJson(const nlohmann::json& value);
std::string BriefText(std::string_view text);  // of the string, in quotes

// How such files are written: keys in order, two spaces, a line feed at the end. What is not UTF-8
// is replaced.
std::string FileJson(const nlohmann::json& value);

}  // namespace nibble

#endif  // NIBBLE_COMMON_JSON_TEXT_H_
