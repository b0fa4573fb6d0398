#include "client/remote/watch_state.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"

namespace nibble {
namespace {

constexpr size_t kPaceSamples = 16;  // for the remaining time and the parts of a step
// The last 1 / share of the common steps are compared.
constexpr int64_t kComparedShares[] = {50, 10, 2, 1};

// A reference whose samples reach this share of the job's steps is up to date.
constexpr double kStillRunning = 0.95;

std::optional<StepMark> MarkOf(const v1::JobEvent& event) {
  if (event.step() < 0) return std::nullopt;
  if (event.kind() == v1::JOB_EVENT_KIND_CHECKPOINT &&
      absl::StartsWith(event.text(), "committed")) {
    return StepMark{event.step(), 'c'};
  }
  if (event.kind() == v1::JOB_EVENT_KIND_ATTEMPT && event.attempt() > 1) {
    return StepMark{event.step(), 'R'};
  }
  if (event.kind() == v1::JOB_EVENT_KIND_SPIKE || event.kind() == v1::JOB_EVENT_KIND_GUARD) {
    return StepMark{event.step(), 'g'};
  }
  return std::nullopt;
}

}  // namespace

bool WatchState::AddEvent(const v1::JobEvent& event) {
  if (!events_.empty() && event.number() <= events_.back().number()) return false;
  if (const std::optional<StepMark> mark = MarkOf(event)) {
    marks_.push_back(*mark);
    if (marks_.size() > kMostMarks) marks_.pop_front();
  }
  events_.push_back(event);
  if (events_.size() > kMostEvents) events_.pop_front();
  return true;
}

void WatchState::AddSample(const v1::StepSample& sample) {
  // At the start of a stream a sample may come twice, which is no return to a checkpoint.
  for (auto known = recent_.rbegin(); known != recent_.rend(); ++known) {
    if (known->step() < sample.step()) break;
    if (known->step() == sample.step() && known->loss() == sample.loss() &&
        known->step_seconds() == sample.step_seconds()) {
      return;
    }
  }
  while (!recent_.empty() && recent_.back().step() >= sample.step()) recent_.pop_back();
  recent_.push_back(sample);
  if (recent_.size() > kMostRecent) recent_.pop_front();
  losses_.Add(sample.step(), sample.loss(), sample.updated());
}

int64_t WatchState::next_step() const {
  const int64_t sampled = recent_.empty() ? 0 : recent_.back().step() + 1;
  return std::max(job_.next_step(), job_.has_attempt() ? sampled : 0);
}

double WatchState::eta_seconds() const {
  const std::optional<v1::StepSample> mean = mean_step();
  if (!mean || job_.state() != v1::JOB_STATE_RUNNING) return -1;
  const auto left = static_cast<double>(job_.shape().steps() - next_step());
  return std::max(0.0, mean->step_seconds() * left);
}

std::optional<v1::StepSample> WatchState::mean_step() const {
  if (recent_.empty()) return std::nullopt;
  v1::StepSample mean;
  const size_t counted = std::min(recent_.size(), kPaceSamples);
  const double share = 1 / static_cast<double>(counted);
  for (size_t i = recent_.size() - counted; i < recent_.size(); ++i) {
    const v1::StepSample& one = recent_[i];
    mean.set_step_seconds(mean.step_seconds() + share * one.step_seconds());
    mean.set_data_seconds(mean.data_seconds() + share * one.data_seconds());
    mean.set_weights_seconds(mean.weights_seconds() + share * one.weights_seconds());
    mean.set_forward_seconds(mean.forward_seconds() + share * one.forward_seconds());
    mean.set_backward_seconds(mean.backward_seconds() + share * one.backward_seconds());
    mean.set_reduce_seconds(mean.reduce_seconds() + share * one.reduce_seconds());
    mean.set_update_seconds(mean.update_seconds() + share * one.update_seconds());
  }
  return mean;
}

std::optional<LossDifference> WatchState::relative_difference() const {
  const auto& own = losses_.buckets();
  const auto& other = reference_losses_.buckets();
  if (own.empty() || other.empty()) return std::nullopt;
  const int64_t last = std::min(own.back().last_step, other.back().last_step);
  // A longer span if these steps were not sampled in both.
  for (const int64_t share : kComparedShares) {
    const int64_t first = last - last / share;
    const std::optional<double> loss = losses_.MeanOver(first, last);
    const std::optional<double> reference = reference_losses_.MeanOver(first, last);
    if (!loss || !reference || *reference == 0) continue;
    return LossDifference{.relative = (*loss - *reference) / *reference,
                          .step = last,
                          .reference_ended = last < own.back().last_step * kStillRunning};
  }
  return std::nullopt;
}

}  // namespace nibble
