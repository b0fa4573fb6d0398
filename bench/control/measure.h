// What the benchmarks of the coordinator have in common: the job that they submit, percentiles, the
// disk's own rate of small synced writes, and how a figure is held against its limit.
//
// Thread-safety: pure functions; SyncRate writes a file of its own.
#ifndef NIBBLE_BENCH_CONTROL_MEASURE_H_
#define NIBBLE_BENCH_CONTROL_MEASURE_H_

#include <string>
#include <vector>

namespace nibble::bench {

// YAML of a job with so many ranks; none of its files is looked at by the coordinator.
std::string JobSpecText(const std::string& name, int ranks);

// 0 of none.
double Percentile(std::vector<double> values, double percent);

// Appends of 4 KiB in the directory, each made durable, per second.
double SyncRate(const std::string& directory, double seconds);

// "met" or "MISSED".
const char* Verdict(bool met);

// A new directory below `parent`, gone with it.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& parent);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }  // empty: it could not be made

 private:
  std::string path_;
};

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_CONTROL_MEASURE_H_
