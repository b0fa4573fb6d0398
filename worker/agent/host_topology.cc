#include "worker/agent/host_topology.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/errno_error.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr int kMostThreads = 1 << 16;

// The first line; nullopt if the file does not exist.
std::optional<std::string> LineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) {
    return file.is_open() ? std::optional<std::string>("") : std::nullopt;
  }
  return line;
}

absl::StatusOr<std::vector<int>> CpuListAt(const std::string& path) {
  const std::optional<std::string> line = LineOf(path);
  if (!line.has_value()) return std::vector<int>();
  absl::StatusOr<std::vector<int>> list = ParseCpuList(*line);
  if (list.ok()) return list;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", list.status().message()));
}

// `threads`, divided into the cores that they belong to.
absl::StatusOr<std::vector<std::vector<int>>> CoresOf(const std::string& root,
                                                      const std::vector<int>& threads) {
  std::set<int> left(threads.begin(), threads.end());
  std::vector<std::vector<int>> cores;
  while (!left.empty()) {
    const int first = *left.begin();
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<int> siblings,
                            CpuListAt(absl::StrCat(root, "/sys/devices/system/cpu/cpu", first,
                                                   "/topology/thread_siblings_list")));
    std::vector<int> core = {first};
    left.erase(first);
    for (const int sibling : siblings) {
      if (left.erase(sibling) > 0) core.push_back(sibling);
    }
    cores.push_back(std::move(core));
  }
  return cores;
}

}  // namespace

std::vector<int> HostNode::Threads() const {
  std::vector<int> threads;
  for (const std::vector<int>& core : cores) {
    threads.insert(threads.end(), core.begin(), core.end());
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view list) {
  std::set<int> cpus;
  const absl::string_view text = absl::StripAsciiWhitespace(list);
  if (text.empty()) return std::vector<int>();
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0;
    int last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first ||
        last >= kMostThreads) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text.substr(0, 80), "' is not a list of CPUs such as 0-3,8"));
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return std::vector<int>(cpus.begin(), cpus.end());
}

std::string CpuListText(const std::vector<int>& cpus) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    parts.push_back(end - i == 1 ? absl::StrCat(cpus[i])
                                 : absl::StrCat(cpus[i], "-", cpus[end - 1]));
    i = end;
  }
  return absl::StrJoin(parts, ",");
}

absl::StatusOr<std::vector<int>> AllowedThreads() {
  // The kernel's mask may be larger than the caller's.
  for (int most = CPU_SETSIZE; most <= kMostThreads; most *= 2) {
    cpu_set_t* const set = CPU_ALLOC(most);
    const size_t bytes = CPU_ALLOC_SIZE(most);
    if (sched_getaffinity(0, bytes, set) != 0) {
      const int error = errno;
      CPU_FREE(set);
      if (error == EINVAL) continue;
      return ErrnoError(error, "sched_getaffinity");
    }
    std::vector<int> threads;
    for (int cpu = 0; cpu < most; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) threads.push_back(cpu);
    }
    CPU_FREE(set);
    return threads;
  }
  return absl::OutOfRangeError(absl::StrCat("this host has more than ", kMostThreads, " CPUs"));
}

absl::StatusOr<std::vector<HostNode>> ReadHostNodes(const std::string& root,
                                                    const std::vector<int>& allowed) {
  const std::set<int> usable(allowed.begin(), allowed.end());
  std::map<int, std::vector<int>> threads;  // by node
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(root + "/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename();
    absl::string_view number = name;
    int node = 0;
    if (!absl::ConsumePrefix(&number, "node") || !absl::SimpleAtoi(number, &node)) continue;
    NIBBLE_ASSIGN_OR_RETURN(std::vector<int> cpus, CpuListAt(entry.path().string() + "/cpulist"));
    std::erase_if(cpus, [&usable](int cpu) { return !usable.contains(cpu); });
    if (!cpus.empty()) threads[node] = std::move(cpus);
  }
  if (threads.empty()) threads[0] = allowed;
  std::vector<HostNode> nodes;
  for (const auto& [number, cpus] : threads) {
    NIBBLE_ASSIGN_OR_RETURN(std::vector<std::vector<int>> cores, CoresOf(root, cpus));
    nodes.push_back({.number = number, .cores = std::move(cores)});
  }
  return nodes;
}

int NumaNodeOf(const std::string& root, const std::string& pci) {
  int node = -1;
  if (pci.empty()) return node;
  const std::optional<std::string> line =
      LineOf(absl::StrCat(root, "/sys/bus/pci/devices/", pci, "/numa_node"));
  if (!line.has_value() || !absl::SimpleAtoi(*line, &node) || node < 0) return -1;
  return node;
}

}  // namespace nibble
