#include "bench/limits.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/files/files.h"

namespace nibble::bench {

double Percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(percent / 100 * static_cast<double>(values.size()));
  const auto found = values.begin() + static_cast<ptrdiff_t>(std::min(at, values.size() - 1));
  std::nth_element(values.begin(), found, values.end());
  return *found;
}

int ExitCode(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

ScratchDirectory::ScratchDirectory(const std::string& parent) {
  std::string path = parent + "/nibble_bench_XXXXXX";
  if (mkdtemp(path.data()) != nullptr) path_ = path;
}

ScratchDirectory::~ScratchDirectory() {
  if (!path_.empty()) (void)RemoveTree(path_);
}

double SyncRate(const std::string& directory, double seconds) {
  const std::string path = directory + "/sync_rate";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return 0;
  const std::string block(4096, 'x');
  int64_t done = 0;
  double took = 0;
  const auto start = std::chrono::steady_clock::now();
  while (took < seconds) {
    if (write(fd, block.data(), block.size()) != static_cast<ssize_t>(block.size())) break;
    if (fdatasync(fd) != 0) break;
    ++done;
    took = Since(start);
  }
  (void)close(fd);
  (void)unlink(path.c_str());
  return took > 0 ? static_cast<double>(done) / took : 0;
}

double CopyLimit::Run() {
  const int64_t parts = pool_.threads();
  const int64_t size = static_cast<int64_t>(from_.size()) / parts;
  return Seconds([&] {
    pool_.ParallelFor(parts, [&](int64_t i, int) {
      std::memcpy(to_.data() + i * size, from_.data() + i * size, size);
    });
  });
}

}  // namespace nibble::bench
