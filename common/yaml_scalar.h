// How a scalar is written in YAML so that every reader, of version 1.1 (PyYAML) or 1.2, reads the
// same value of the same type.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_YAML_SCALAR_H_
#define NIBBLE_COMMON_YAML_SCALAR_H_

#include <string>
#include <string_view>

namespace nibble {

// The text of a finite number, with a point where it has an exponent: 1e-05 is a text to YAML 1.1,
// 1.0e-05 a number.
std::string YamlNumber(std::string_view digits);

// Whether a text needs no quotes: it is no number, truth value, null or date to any reader, and has
// no character that means something to YAML.
bool YamlReadsAsItself(std::string_view text);

// In double quotes. What readers refuse or change inside quotes is escaped: control characters,
// line separators, and byte order marks. `text` is UTF-8.
std::string YamlQuoted(std::string_view text);

// Whether readers take every character of the text as it is, where it stands without escapes; line
// feeds are left to the caller.
bool YamlPrintable(std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_COMMON_YAML_SCALAR_H_
