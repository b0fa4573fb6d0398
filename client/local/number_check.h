// Checks of numbers on the command line that say what is allowed: "--limit: '5000'; allowed: whole
// numbers, 0 to 1000".
//
// Thread-safety: values.
#ifndef NIBBLE_CLIENT_LOCAL_NUMBER_CHECK_H_
#define NIBBLE_CLIENT_LOCAL_NUMBER_CHECK_H_

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace nibble {

// Of numbers in [least, most]; most == numeric_limits<int64_t>::max(): no bound.
CLI::Validator WholeNumber(int64_t least, int64_t most);
CLI::Validator RealNumber(double least, double most);

// What `value`, into which the option is read, can hold and is at least `least`.
template <class T>
CLI::Validator WholeFor(const T&, int64_t least) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr uint64_t kHeld = std::numeric_limits<T>::max();
  return WholeNumber(least, static_cast<int64_t>(std::min(kHeld, kMost)));
}
template <class T>
CLI::Validator WholeFor(const std::optional<T>&, int64_t least) {
  return WholeFor(T(), least);
}

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_NUMBER_CHECK_H_
