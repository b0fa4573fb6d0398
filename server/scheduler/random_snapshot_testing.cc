#include "server/scheduler/random_snapshot_testing.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/scheduler/invariants_testing.h"

namespace nibble::scheduler::testing {
namespace {

class Builder {
 public:
  Builder(uint64_t seed, const RandomShape& shape) : random_(seed), shape_(shape) {}

  Snapshot Build() {
    Workers();
    Queues();
    const int jobs = shape_.fixed_counts ? shape_.jobs : Between(0, shape_.jobs);
    const int active = shape_.fixed_counts ? Between(0, 100) : Between(0, 80);
    for (int j = 0; j < jobs; ++j) {
      Job job = AnyJob(j);
      if (Between(0, 99) < active) MakeActive(job);
      snapshot_.jobs.push_back(std::move(job));
    }
    return std::move(snapshot_);
  }

 private:
  // Own arithmetic, so that a seed gives the same values with every standard library.
  int Between(int least, int most) {
    return least + static_cast<int>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  bool Chance(int percent) { return Between(0, 99) < percent; }

  void Workers() {
    const int workers = shape_.fixed_counts ? shape_.workers : Between(1, shape_.workers);
    const int kinds = Between(1, 3);
    for (int w = 0; w < workers; ++w) {
      Worker worker{.name = absl::StrCat("w", w)};
      worker.rack = shape_.fixed_counts ? absl::StrCat("r", w / 32) : absl::StrCat("r", w % 3);
      const int kind = Between(0, kinds - 1);
      worker.labels.push_back(kind == 0 ? "device=cpu" : "device=cuda");
      if (kind == 2) worker.labels.push_back("fp4=yes");
      worker.slots = shape_.fixed_counts ? 8 : Between(1, 4);
      if (Chance(shape_.fixed_counts ? 2 : 15)) {
        worker.state = static_cast<WorkerState>(Between(1, 3));
      }
      snapshot_.workers.push_back(worker);
      left_.push_back(worker.slots);
    }
  }

  void Queues() {
    const int queues = Between(1, 4);
    int slots = 0;
    for (const Worker& worker : snapshot_.workers) slots += worker.slots;
    for (int q = 0; q < queues; ++q) {
      Queue queue{.name = absl::StrCat("q", q)};
      if (Chance(65)) {
        queue.quota = Between(0, slots);
        if (Chance(75)) queue.cohort = Chance(80) ? "c0" : "c1";
        if (Chance(40)) queue.borrow_limit = Between(0, slots);
      }
      snapshot_.queues.push_back(queue);
    }
  }

  Job AnyJob(int index) {
    Job job{.name = absl::StrCat("j", index)};
    job.queue = absl::StrCat("q", Between(0, static_cast<int>(snapshot_.queues.size()) - 1));
    if (Chance(1)) job.queue = "nowhere";
    job.priority = Between(0, 3);
    job.submitted = shape_.now_ms - Between(0, 50) * 1000;
    const int most = shape_.fixed_counts ? (Chance(5) ? 512 : 64) : 8;
    job.min_slots = job.max_slots = Between(1, most);
    if (Chance(35)) {
      job.max_slots = job.min_slots * Between(1, 4);
      if (Chance(50)) {
        for (int size = job.min_slots; size <= job.max_slots; size *= 2) job.sizes.push_back(size);
      }
    }
    if (Chance(30)) job.required.push_back(Chance(70) ? "device=cuda" : "device=cpu");
    if (Chance(5)) job.required.push_back("fp4=yes");
    if (Chance(20)) job.preferred.push_back("fp4=yes");
    if (Chance(15)) {
      job.excluded_workers.push_back(
          absl::StrCat("w", Between(0, static_cast<int>(snapshot_.workers.size()))));
    }
    if (Chance(15)) job.spare_slots = Between(1, 3);
    job.preemptible = !Chance(10);
    if (Chance(50)) job.expected_ms = Between(1, 100) * 1000;
    if (Chance(15)) job.phase = JobPhase::kRecovering;
    if (Chance(15)) job.not_before_ms = shape_.now_ms + Between(-10, 30) * 1000;
    return job;
  }

  // Some free slots that the job may use; empty if there are not enough.
  Placement Occupy(const Job& job, int count) {
    Placement placement;
    const int workers = static_cast<int>(left_.size());
    const int start = Between(0, workers - 1);
    for (int i = 0; i < workers && count > 0; ++i) {
      const int w = (start + i) % workers;
      const Worker& worker = snapshot_.workers[w];
      if (worker.state == WorkerState::kLost || left_[w] == 0) continue;
      if (!HasLabels(worker, job.required)) continue;
      const int taken = Between(1, std::min(left_[w], count));
      placement.push_back({worker.name, taken});
      left_[w] -= taken;
      count -= taken;
    }
    if (count == 0) return placement;
    for (const SlotsOn& on : placement) left_[std::stoi(on.worker.substr(1))] += on.slots;
    return {};
  }

  void MakeActive(Job& job) {
    int size = job.min_slots;
    if (job.sizes.size() > 1) {
      size = job.sizes[Between(0, static_cast<int>(job.sizes.size()) - 1)];
    } else if (job.sizes.empty()) {
      size = Between(job.min_slots, job.max_slots);
    }
    if (FindQueue(snapshot_, job.queue) == nullptr) return;
    if (!Allows(QuotaOf(snapshot_, job.queue), size)) return;
    job.held = Occupy(job, size);
    if (job.held.empty()) return;
    job.phase = Chance(70) ? JobPhase::kRunning : static_cast<JobPhase>(Between(2, 5));
    job.not_before_ms = 0;
    if (Chance(50)) job.expected_end_ms = shape_.now_ms + Between(-5, 100) * 1000;
    job.checkpoint_ms = shape_.now_ms - Between(0, 1000) * 1000;
    job.resized_ms = shape_.now_ms - Between(0, 1200) * 1000;
    if (job.phase != JobPhase::kResizing) return;
    // Shrinks to its smallest size, on a part of its slots.
    int left = job.min_slots;
    for (const SlotsOn& on : job.held) {
      const int taken = std::min(left, on.slots);
      if (taken > 0) job.next.push_back({on.worker, taken});
      left -= taken;
    }
  }

  std::mt19937_64 random_;
  const RandomShape shape_;
  Snapshot snapshot_;
  std::vector<int> left_;  // by worker
};

}  // namespace

Snapshot RandomSnapshot(uint64_t seed, const RandomShape& shape) {
  return Builder(seed, shape).Build();
}

Snapshot Shuffled(Snapshot snapshot, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto shuffle = [&random](auto& entities) {
    for (size_t i = entities.size(); i > 1; --i) std::swap(entities[i - 1], entities[random() % i]);
  };
  shuffle(snapshot.workers);
  shuffle(snapshot.queues);
  shuffle(snapshot.jobs);
  for (Worker& worker : snapshot.workers) shuffle(worker.labels);
  for (Job& job : snapshot.jobs) {
    shuffle(job.held);
    shuffle(job.next);
    shuffle(job.excluded_workers);
  }
  return snapshot;
}

}  // namespace nibble::scheduler::testing
