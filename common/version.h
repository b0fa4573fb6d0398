// The version of every program of Nibble: what `--version` prints, and what workers and ranks
// report about themselves.
#ifndef NIBBLE_COMMON_VERSION_H_
#define NIBBLE_COMMON_VERSION_H_

namespace nibble {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace nibble

#endif  // NIBBLE_COMMON_VERSION_H_
