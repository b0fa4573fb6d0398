// The last lines of a log, for people who are told that its program has ended.
//
// Ownership: none kept. Thread-safety: a function of the disk.
#ifndef NIBBLE_CLIENT_CLUSTER_LOG_TAIL_H_
#define NIBBLE_CLIENT_CLUSTER_LOG_TAIL_H_

#include <string>

namespace nibble {

// A dozen whole lines at most; says so where there is none.
std::string LogTail(const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_LOG_TAIL_H_
