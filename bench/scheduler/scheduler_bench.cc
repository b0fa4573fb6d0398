// The time of a plan on a large cluster, over many random ones: p50 and p99, next to the time to
// read the same snapshot once, which is a lower bound, and the memory that planning adds.
//
//   scheduler_bench [workers] [jobs] [clusters]      10000 workers, 1000 waiting jobs, 40 clusters

#include <malloc.h>
#include <time.h>

#include <new>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/limits.h"
#include "server/scheduler/plan.h"
#include "server/scheduler/random_snapshot_testing.h"

namespace {

// Bytes allocated now, and the maximum since g_peak was set.
int64_t g_live = 0, g_peak = 0;

}  // namespace

void* operator new(size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  g_live += static_cast<int64_t>(malloc_usable_size(memory));
  if (g_live > g_peak) g_peak = g_live;
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) g_live -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace nibble::scheduler {
namespace {

using bench::Percentile;

constexpr int64_t kNow = 1'000'000'000;

// CPU time of this thread only: machines are shared.
double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Do>
double Seconds(Do&& run) {
  const double start = CpuSeconds();
  run();
  return CpuSeconds() - start;
}

uint64_t Read(const std::string& text) {
  uint64_t sum = text.size();
  for (char c : text) sum = sum * 31 + static_cast<unsigned char>(c);
  return sum;
}

// Reads every field that a plan depends on, once.
uint64_t ReadOnce(const Snapshot& snapshot) {
  uint64_t sum = 0;
  for (const Worker& worker : snapshot.workers) {
    sum += Read(worker.name) + Read(worker.rack) + worker.slots + static_cast<int>(worker.state);
    for (const std::string& label : worker.labels) sum += Read(label);
  }
  for (const Job& job : snapshot.jobs) {
    sum += Read(job.name) + Read(job.queue) + job.priority + job.submitted + job.min_slots;
    for (const std::string& label : job.required) sum += Read(label);
    for (const std::string& label : job.preferred) sum += Read(label);
    for (const SlotsOn& on : job.held) sum += Read(on.worker) + on.slots;
  }
  return sum;
}

// A cluster that runs a part of what it could, with a third as many running jobs as workers, in
// addition to the waiting jobs.
Snapshot Cluster(uint64_t seed, int workers, int waiting, bool quotas) {
  Snapshot snapshot = testing::RandomSnapshot(
      seed,
      {.workers = workers, .jobs = waiting + workers / 3, .now_ms = kNow, .fixed_counts = true});
  if (!quotas) {
    for (Queue& queue : snapshot.queues) queue = {.name = queue.name};
  }
  int left = waiting;
  std::erase_if(snapshot.jobs,
                [&left](const Job& job) { return IsWaiting(job.phase) && left-- <= 0; });
  return snapshot;
}

void Measure(const char* what, int workers, int waiting, int clusters, bool quotas) {
  std::vector<double> plans, reads, starts, victims, memory;
  uint64_t sink = 0;
  for (int c = 0; c < clusters; ++c) {
    const Snapshot snapshot = Cluster(c + 1, workers, waiting, quotas);
    reads.push_back(Seconds([&] { sink += ReadOnce(snapshot); }));
    Decisions plan;
    const int64_t before = g_live;
    g_peak = before;
    plans.push_back(Seconds([&] { plan = *Plan(snapshot, kNow, {}); }));
    memory.push_back(static_cast<double>(g_peak - before));
    const double count = static_cast<double>(plan.actions.size());
    double preempted = 0;
    for (const Decision& decision : plan.actions) preempted += decision.action == Action::kPreempt;
    starts.push_back(count - preempted);
    victims.push_back(preempted);
  }
  std::printf(
      "%-8s %6d workers %5d waiting: plan p50 %6.2f ms  p99 %6.2f ms | read once p50 %5.2f ms"
      " (x%.1f) | memory p50 %.1f MiB | p50 %.0f starts and resizes, %.0f preemptions%s\n",
      what, workers, waiting, 1e3 * Percentile(plans, 50), 1e3 * Percentile(plans, 99),
      1e3 * Percentile(reads, 50), Percentile(plans, 50) / Percentile(reads, 50),
      Percentile(memory, 50) / (1 << 20), Percentile(starts, 50), Percentile(victims, 50),
      sink == 1 ? "." : "");
}

}  // namespace
}  // namespace nibble::scheduler

int main(int argc, char** argv) {
  const int workers = argc > 1 ? std::atoi(argv[1]) : 10'000;
  const int waiting = argc > 2 ? std::atoi(argv[2]) : 1'000;
  const int clusters = argc > 3 ? std::atoi(argv[3]) : 40;
  if (workers < 1 || waiting < 1 || clusters < 1) {
    std::fprintf(stderr, "scheduler_bench [workers] [waiting jobs] [clusters], each at least 1\n");
    return 2;
  }
  for (const bool quotas : {false, true}) {
    nibble::scheduler::Measure(quotas ? "quotas" : "plain", workers, waiting, clusters, quotas);
  }
  return 0;
}
