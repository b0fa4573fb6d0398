// JSON of other programs, such as a model directory's files: untrusted, so its depth is bounded and
// duplicate keys are refused.
//
// Ownership: results own everything. Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_JSON_TEXT_H_
#define NIBBLE_COMMON_JSON_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace nibble {

// Bounds on the text. A tree takes up to about twenty times the memory of its text, so these bounds
// keep it below 200 MB.
inline constexpr size_t kMaxConfigBytes = size_t{1} << 20;
inline constexpr size_t kMaxIndexBytes = size_t{1} << 23;
inline constexpr int kMaxJsonDepth = 16;
// Of the lines of data sets and logs, of which only some fields are read.
inline constexpr int kMaxJsonLineDepth = 64;

// Whether JSON opens more than `most` objects and arrays inside one another. Such a tree takes some
// seventy times the memory of its text, and nlohmann's dump() recurses over it.
bool NestsDeeperThan(int most, std::string_view text);

// Parses an object. Python writes infinities and NaN as bare words, which JSON does not have; they
// are read as {"__float__": "Infinity"}, which is how newer files spell them.
//
// InvalidArgument, beginning with `name`, if the text is not an object, is nested deeper than
// kMaxJsonDepth, or has a key twice in one object.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view name, std::string_view text);

// A value for a message: on one line, printable, cut after 80 bytes.
std::string BriefJson(const nlohmann::json& value);
std::string BriefText(std::string_view text);  // a string, in quotes

// The text of a file: keys in order, indented by two spaces, a line feed at the end. Bytes that are
// not UTF-8 are replaced.
std::string FileJson(const nlohmann::json& value);

}  // namespace nibble

#endif  // NIBBLE_COMMON_JSON_TEXT_H_
