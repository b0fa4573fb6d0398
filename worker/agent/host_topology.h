// The NUMA nodes, cores and PCI devices of a host, as Linux describes them under /sys.
//
// Ownership: values. Thread-safety: any thread; the functions read files below `root`, which is "/"
// except in tests.
#ifndef NIBBLE_WORKER_AGENT_HOST_TOPOLOGY_H_
#define NIBBLE_WORKER_AGENT_HOST_TOPOLOGY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

// A NUMA node that has cores.
struct HostNode {
  int number = 0;
  // Each core's hardware threads, ascending; sorted by the first of them.
  std::vector<std::vector<int>> cores;

  // Of all cores, ascending.
  std::vector<int> Threads() const;
};

// The numbers of a list such as "0-3,8,10-11", ascending; empty for an empty list. InvalidArgument,
// with the list, if it is malformed or has a number above 65535.
absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view list);
// The opposite, in the shortest form.
std::string CpuListText(const std::vector<int>& cpus);

// The hardware threads that this process may use, ascending.
absl::StatusOr<std::vector<int>> AllowedThreads();

// The nodes by number, with the threads of `allowed` only; nodes that have none are left out. A
// kernel without NUMA has node 0. InvalidArgument, naming the file, for a malformed one.
absl::StatusOr<std::vector<HostNode>> ReadHostNodes(const std::string& root,
                                                    const std::vector<int>& allowed);

// The NUMA node of the PCI device at an address such as "0000:17:00.0"; -1 if it is unknown.
int NumaNodeOf(const std::string& root, const std::string& pci);

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_HOST_TOPOLOGY_H_
