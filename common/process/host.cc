#include "common/process/host.h"

#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace nibble {

std::string ProcessorName(absl::string_view cpuinfo) {
  for (absl::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    if (!absl::ConsumePrefix(&line, "model name")) continue;
    line = absl::StripLeadingAsciiWhitespace(line);
    if (absl::ConsumePrefix(&line, ":")) return std::string(absl::StripAsciiWhitespace(line));
  }
  return "";
}

std::string ProcessorText(const HostDescription& host) {
  const std::string threads =
      absl::StrCat(host.threads, host.threads == 1 ? " thread" : " threads");
  return host.processor.empty() ? threads : absl::StrCat(host.processor, ", ", threads);
}

HostDescription DescribeHost() {
  HostDescription host;
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) == 0) host.name = name;
  std::ifstream file("/proc/cpuinfo", std::ios::binary);
  host.processor = ProcessorName(
      std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
  cpu_set_t usable;
  host.threads = sched_getaffinity(0, sizeof usable, &usable) == 0
                     ? CPU_COUNT(&usable)
                     : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return host;
}

}  // namespace nibble
