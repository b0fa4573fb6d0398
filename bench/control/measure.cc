#include "bench/control/measure.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace nibble::bench {

std::string JobSpecText(const std::string& name, int ranks) {
  return absl::StrCat("name: ", name,
                      "\nmodel: tiny-hybrid\nrecipe: nvfp4\n"
                      "data: {train: [corpus.txt], sequence: 128}\n"
                      "training: {steps: 1000, batch: 16}\n"
                      "optimizer: {warmup_steps: 10, decay_fraction: 0.2}\n"
                      "resources: {ranks: ",
                      ranks, "}\n");
}

double Percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(percent / 100 * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

double SyncRate(const std::string& directory, double seconds) {
  constexpr size_t kBlock = 4096;
  const std::string path = directory + "/sync_rate";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return 0;
  const std::string block(kBlock, 'x');
  int64_t done = 0;
  double took = 0;
  const auto start = std::chrono::steady_clock::now();
  while (took < seconds) {
    if (write(fd, block.data(), block.size()) != static_cast<ssize_t>(kBlock)) break;
    if (fdatasync(fd) != 0) break;
    ++done;
    took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  (void)close(fd);
  (void)unlink(path.c_str());
  return took > 0 ? static_cast<double>(done) / took : 0;
}

const char* Verdict(bool met) { return met ? "met" : "MISSED"; }

ScratchDirectory::ScratchDirectory(const std::string& parent) {
  std::string path = parent + "/nibble_control_bench_XXXXXX";
  if (mkdtemp(path.data()) != nullptr) path_ = path;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace nibble::bench
