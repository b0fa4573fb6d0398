#include "client/remote/loss_history.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace nibble {

void LossHistory::Add(int64_t step, double loss, bool updated) {
  while (!buckets_.empty() && buckets_.back().last_step >= step) buckets_.pop_back();
  LossBucket bucket = {.first_step = step, .last_step = step, .skipped = updated ? 0 : 1};
  if (std::isfinite(loss)) {
    bucket.least = bucket.most = bucket.sum = loss;
    bucket.finite = 1;
  } else {
    bucket.non_finite = 1;
  }
  Append(bucket);
  while (buckets_.size() > kMostBuckets) {
    width_ *= 2;
    std::vector<LossBucket> narrow = std::exchange(buckets_, {});
    buckets_.reserve(kMostBuckets + 1);
    for (const LossBucket& one : narrow) Append(one);
  }
}

void LossHistory::Append(const LossBucket& bucket) {
  if (buckets_.empty() || buckets_.back().first_step / width_ != bucket.first_step / width_) {
    buckets_.push_back(bucket);
    return;
  }
  LossBucket& last = buckets_.back();
  last.last_step = bucket.last_step;
  if (bucket.finite > 0) {
    last.least = last.finite > 0 ? std::min(last.least, bucket.least) : bucket.least;
    last.most = last.finite > 0 ? std::max(last.most, bucket.most) : bucket.most;
  }
  last.sum += bucket.sum;
  last.finite += bucket.finite;
  last.non_finite += bucket.non_finite;
  last.skipped += bucket.skipped;
}

std::optional<double> LossHistory::MeanOver(int64_t first, int64_t last) const {
  double sum = 0;
  int64_t count = 0;
  auto bucket =
      std::partition_point(buckets_.begin(), buckets_.end(),
                           [first](const LossBucket& one) { return one.last_step < first; });
  for (; bucket != buckets_.end() && bucket->first_step <= last; ++bucket) {
    sum += bucket->sum;
    count += bucket->finite;
  }
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

std::vector<LossPoint> SmoothedLosses(const LossHistory& history, double window) {
  const std::vector<LossBucket>& all = history.buckets();
  std::vector<LossPoint> points;
  size_t begin = 0, end = 0;  // the buckets whose centre is in the window
  double sum = 0;
  int64_t count = 0;
  for (const LossBucket& bucket : all) {
    const double centre = bucket.centre();
    for (; end < all.size() && all[end].centre() <= centre + window / 2; ++end) {
      sum += all[end].sum;
      count += all[end].finite;
    }
    for (; all[begin].centre() < centre - window / 2; ++begin) {
      sum -= all[begin].sum;
      count -= all[begin].finite;
    }
    if (bucket.finite > 0) points.push_back({centre, sum / static_cast<double>(count)});
  }
  return points;
}

}  // namespace nibble
