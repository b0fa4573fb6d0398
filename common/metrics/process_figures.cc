#include "common/metrics/process_figures.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace nibble {
namespace {

std::string ReadAll(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The fields of /proc/self/stat (proc(5)) after the program's name, which may contain any
// character: [0] is field 3.
std::vector<double> StatFields() {
  const std::string stat = ReadAll("/proc/self/stat");
  const size_t name_end = stat.rfind(')');
  std::vector<double> fields;
  if (name_end == std::string::npos) return fields;
  std::istringstream text(stat.substr(name_end + 3));
  fields.push_back(0);  // the state is not a number
  for (double value; text >> value;) fields.push_back(value);
  return fields;
}

double BootUnixSeconds() {
  const std::string stat = ReadAll("/proc/stat");
  const size_t at = stat.find("btime ");
  return at == std::string::npos ? 0 : std::atof(stat.c_str() + at + 6);
}

}  // namespace

ProcessFigures ReadProcessFigures() {
  ProcessFigures figures;
  const std::vector<double> fields = StatFields();
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (fields.size() > 21) {
    figures.cpu_seconds = (fields[11] + fields[12]) / ticks;
    figures.threads = static_cast<int64_t>(fields[17]);
    figures.start_unix_seconds = BootUnixSeconds() + fields[19] / ticks;
    figures.resident_bytes = static_cast<int64_t>(fields[21]) * sysconf(_SC_PAGESIZE);
  }
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error)) {
    ++figures.open_files;
  }
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    figures.max_open_files = static_cast<int64_t>(limit.rlim_cur);
  }
  return figures;
}

}  // namespace nibble
