// What a new process is given, in the form that exec and posix_spawn want.
//
// Ownership: values; the pointers are into the texts. Thread-safety: pure functions, but for the
// environment of this process, which nobody may change meanwhile.
#ifndef NIBBLE_COMMON_PROCESS_SPAWN_ARGUMENTS_H_
#define NIBBLE_COMMON_PROCESS_SPAWN_ARGUMENTS_H_

#include <map>
#include <string>
#include <vector>

namespace nibble {

// NAME=VALUE of this process's environment with `over` over it.
std::vector<std::string> EnvironmentWith(const std::map<std::string, std::string>& over);

// Into `texts`, with a null pointer at the end.
std::vector<char*> PointersTo(std::vector<std::string>& texts);

}  // namespace nibble

#endif  // NIBBLE_COMMON_PROCESS_SPAWN_ARGUMENTS_H_
