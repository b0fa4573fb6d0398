// The losses of a run of any length in bounded memory: steps are gathered into buckets of equal
// width, which doubles when there are too many. A bucket keeps the extremes, so that a spike of one
// step stays visible after a million steps.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_LOSS_HISTORY_H_
#define NIBBLE_CLIENT_REMOTE_LOSS_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace nibble {

// The samples whose steps are in one span of steps.
struct LossBucket {
  int64_t first_step = 0;  // of a sample
  int64_t last_step = 0;   // of a sample
  double least = 0;        // of the finite losses; unset without any
  double most = 0;
  double sum = 0;
  int64_t finite = 0;      // number of finite losses
  int64_t non_finite = 0;  // number of others
  int64_t skipped = 0;     // steps whose update a guard skipped

  double mean() const { return sum / static_cast<double>(finite); }
  double centre() const { return 0.5 * static_cast<double>(first_step + last_step); }
};

class LossHistory {
 public:
  static constexpr size_t kMostBuckets = 4096;

  // A repeated step drops the bucket with it and all later ones: the run went back to a checkpoint.
  void Add(int64_t step, double loss, bool updated = true);

  // By step.
  const std::vector<LossBucket>& buckets() const { return buckets_; }
  // Steps per bucket, a power of two.
  int64_t width() const { return width_; }
  // The mean of the finite losses of the buckets with steps in [first, last].
  std::optional<double> MeanOver(int64_t first, int64_t last) const;

 private:
  void Append(const LossBucket& bucket);

  std::vector<LossBucket> buckets_;
  int64_t width_ = 1;
};

struct LossPoint {
  double step = 0;
  double loss = 0;
};

// The mean over `window` steps around each bucket with finite losses; 0: each bucket's own mean.
std::vector<LossPoint> SmoothedLosses(const LossHistory& history, double window);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_LOSS_HISTORY_H_
