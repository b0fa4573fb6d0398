// The machine that this process runs on, as people name it.
//
// Thread-safety: pure functions; DescribeHost() reads /proc.
#ifndef NIBBLE_COMMON_PROCESS_HOST_H_
#define NIBBLE_COMMON_PROCESS_HOST_H_

#include <string>

#include "absl/strings/string_view.h"

namespace nibble {

struct HostDescription {
  std::string name;       // of the node: "node-3"
  std::string processor;  // "Intel(R) Xeon(R) Platinum 8480+"; empty: unknown
  int threads = 0;        // hardware threads that this process may use
};

HostDescription DescribeHost();

// The name of the first processor in the text of /proc/cpuinfo; empty if it has none, as on Arm.
std::string ProcessorName(absl::string_view cpuinfo);

// "Intel(R) Xeon(R) Platinum 8480+, 112 threads"; without the name "112 threads".
std::string ProcessorText(const HostDescription& host);

}  // namespace nibble

#endif  // NIBBLE_COMMON_PROCESS_HOST_H_
