// Shared by the benchmarks of the coordinator: the job that they submit, percentiles, the disk's
// rate of small synced writes, and the verdict on a figure.
//
// Thread-safety: all functions; SyncRate writes a file of its own.
#ifndef NIBBLE_BENCH_CONTROL_MEASURE_H_
#define NIBBLE_BENCH_CONTROL_MEASURE_H_

#include <string>
#include <vector>

namespace nibble::bench {

// YAML of a job with this number of ranks. The coordinator reads none of its files.
std::string JobSpecText(const std::string& name, int ranks);

// 0 if there are no values.
double Percentile(std::vector<double> values, double percent);

// Durable appends of 4 KiB per second in the directory.
double SyncRate(const std::string& directory, double seconds);

// "met" or "MISSED".
const char* Verdict(bool met);

// A new directory below `parent`, removed by the destructor.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& parent);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }  // empty: it could not be created

 private:
  std::string path_;
};

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_CONTROL_MEASURE_H_
