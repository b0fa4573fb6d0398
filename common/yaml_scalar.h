// Writing YAML scalars so that every reader, of YAML 1.1 (PyYAML) or 1.2, reads the same value of
// the same type.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_YAML_SCALAR_H_
#define NIBBLE_COMMON_YAML_SCALAR_H_

#include <string>
#include <string_view>

namespace nibble {

// The text of a finite number, with a point if it has an exponent: YAML 1.1 reads 1e-05 as a
// string, and 1.0e-05 as a number.
std::string YamlNumber(std::string_view digits);

// Whether a string needs no quotes: no reader takes it for a number, boolean, null or date, and it
// has no character with a meaning in YAML.
bool YamlReadsAsItself(std::string_view text);

// The UTF-8 string in double quotes. Characters that readers refuse or change inside quotes are
// escaped: control characters, line separators and byte order marks.
std::string YamlQuoted(std::string_view text);

// Whether readers keep every character of the string, apart from line feeds, without escapes.
bool YamlPrintable(std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_COMMON_YAML_SCALAR_H_
