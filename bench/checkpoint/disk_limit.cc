#include "bench/checkpoint/disk_limit.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "bench/limits.h"

namespace nibble::bench {
namespace {

constexpr int64_t kBlock = int64_t{4} << 20;

}  // namespace

DiskLimit::DiskLimit(const std::string& directory, int64_t bytes)
    : directory_(directory),
      path_(directory + "/disk_limit"),
      blocks_((bytes + kBlock - 1) / kBlock),
      block_(static_cast<std::byte*>(std::aligned_alloc(4096, kBlock))) {
  std::mt19937_64 random(1);
  for (int64_t i = 0; i < kBlock; ++i) block_.get()[i] = static_cast<std::byte>(random());
}

DiskLimit::~DiskLimit() { (void)unlink(path_.c_str()); }

void DiskLimit::Settle() {
  const int fd = open(directory_.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) return;
  (void)syncfs(fd);
  (void)close(fd);
}

double DiskLimit::Write(int flags) {
  (void)unlink(path_.c_str());
  Settle();
  const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | flags, 0666);
  if (fd < 0) return 0;
  bool good = true;
  const double seconds = Seconds([&] {
    for (int64_t i = 0; i < blocks_ && good; ++i) {
      good = write(fd, block_.get(), kBlock) == kBlock;
    }
    good = good && fsync(fd) == 0;
  });
  (void)close(fd);
  return good ? seconds : -1;
}

double DiskLimit::WriteDirect() { return Write(O_DIRECT); }

double DiskLimit::WriteCached() { return Write(0); }

double DiskLimit::ReadDirect() {
  const int fd = open(path_.c_str(), O_RDONLY | O_DIRECT);
  if (fd < 0) return 0;
  bool good = true;
  const double seconds = Seconds([&] {
    for (int64_t i = 0; i < blocks_ && good; ++i) {
      good = read(fd, block_.get(), kBlock) == kBlock;
    }
  });
  (void)close(fd);
  return good ? seconds : -1;
}

}  // namespace nibble::bench
