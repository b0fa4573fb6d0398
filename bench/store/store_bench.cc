// The coordinator's store against the disk it is on: durable commits per second from several
// clients beside the disk's own rate of small synced writes, and how long a restart takes.
//
// Goals: from 64 clients at least 1000 commits a second, or 20 times what the disk syncs, whichever
// is less; a restart with 100,000 finished and 1,000 live jobs in under five seconds.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/limits.h"
#include "common/command_line/command_line.h"
#include "common/files/files.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "server/store/rocks_store.h"
#include "server/store/store.h"

namespace nibble::bench {
namespace {

std::string RandomBytes(uint64_t seed, size_t bytes) {
  std::mt19937_64 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// A change of a job: its entity is written again, with an event under its name.
StoreBatch JobChange(uint64_t seed, uint64_t job, size_t entity_bytes) {
  const std::string key = absl::StrCat("job-", job);
  return {.record = RandomBytes(seed, 200),
          .changes = {{"job", key, RandomBytes(seed + 1, entity_bytes)}}};
}

absl::StatusOr<std::unique_ptr<RocksStore>> Open(const std::string& path) {
  RocksStoreOptions options;
  options.cluster = "bench";
  return RocksStore::Open(path, options);
}

absl::Status Commits(const std::string& directory, int clients, double seconds) {
  const std::string path = directory + "/commits";
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<RocksStore> store, Open(path));
  const double sync_before = SyncRate(directory, seconds / 4);
  Mutex mutex;
  std::vector<double> latencies;  // guarded by mutex
  absl::Status failed;            // guarded by mutex
  const auto start = std::chrono::steady_clock::now();
  const auto end = start + std::chrono::duration<double>(seconds);
  std::vector<std::thread> threads;
  for (int c = 0; c < clients; ++c) {
    threads.emplace_back([&, c] {
      std::vector<double> mine;
      absl::Status status;
      for (uint64_t i = 0; status.ok() && std::chrono::steady_clock::now() < end; ++i) {
        StoreBatch batch = JobChange(i, static_cast<uint64_t>(c) * 100 + i % 100, 2000);
        mine.push_back(Seconds([&] { status = store->Commit(std::move(batch)).status(); }));
      }
      MutexLock lock(&mutex);
      latencies.insert(latencies.end(), mine.begin(), mine.end());
      failed.Update(status);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double took = Since(start);
  if (!failed.ok()) return failed;
  const double sync_rate = std::max(sync_before, SyncRate(directory, seconds / 4));
  const StoreMetrics metrics = store->Metrics();
  const double rate = static_cast<double>(latencies.size()) / took;
  std::printf(
      "%3d clients  %8.0f commits/s   disk %7.0f syncs/s   ratio %6.2f   p50 %7.2f ms  p99 %7.2f "
      "ms   %6.1f batches/sync\n",
      clients, rate, sync_rate, rate / sync_rate, 1e3 * Percentile(latencies, 50),
      1e3 * Percentile(latencies, 99),
      metrics.batches_per_write.sum / static_cast<double>(metrics.batches_per_write.count));
  if (clients == 64) {
    const double goal = std::min(1000.0, 20 * sync_rate);
    std::printf("             goal %.0f commits/s: %s\n", goal, Verdict(rate >= goal));
  }
  store.reset();
  return RemoveTree(path);
}

absl::Status Recovery(const std::string& directory, int64_t finished, int64_t live,
                      size_t entity_bytes) {
  const std::string path = directory + "/recovery";
  {
    // They outlive the store, whose thread uses them.
    Mutex mutex;
    absl::Status failed;  // guarded by mutex
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<RocksStore> store, Open(path));
    for (int64_t job = 0; job < finished + live; ++job) {
      const auto id = static_cast<uint64_t>(job);
      // Every 256th waits, so that no more batches are in flight than the store accepts.
      StoreBatch batch = JobChange(id, id, entity_bytes);
      absl::Status status;
      if (job % 256 == 0) {
        status = store->Commit(std::move(batch)).status();
      } else {
        status = store
                     ->Append(std::move(batch),
                              [&](absl::Status result) {
                                MutexLock lock(&mutex);
                                failed.Update(result);
                              })
                     .status();
      }
      NIBBLE_RETURN_IF_ERROR(status);
    }
    store.reset();
    NIBBLE_RETURN_IF_ERROR(failed);
  }
  int64_t loaded = 0, bytes = 0;
  auto store = absl::StatusOr<std::unique_ptr<RocksStore>>(absl::UnknownError("not opened"));
  const double open_seconds = Seconds([&] { store = Open(path); });
  if (!store.ok()) return store.status();
  absl::Status status;
  const double load_seconds = Seconds([&] {
    status = (*store)->ReadEntities("", [&](const StoredEntity& entity) {
      ++loaded;
      bytes += static_cast<int64_t>(entity.value.size());
      return absl::OkStatus();
    });
  });
  if (!status.ok()) return status;
  const double total = open_seconds + load_seconds;
  std::printf(
      "restart with %lld entities of %zu bytes: open %.2f s, load %.2f s (%.0f MB/s)   goal 5 s: "
      "%s\n",
      static_cast<long long>(loaded), entity_bytes, open_seconds, load_seconds,
      static_cast<double>(bytes) / 1e6 / load_seconds, Verdict(total < 5));
  std::printf("on disk %.0f bytes per entity, its event of 200 bytes included\n",
              static_cast<double>(TreeBytes(path)) / static_cast<double>(loaded));
  const double verify = Seconds([&] { status = (*store)->Verify(); });
  if (!status.ok()) return status;
  const double backup = Seconds([&] { status = (*store)->Backup(directory + "/copy"); });
  std::printf("verify %.2f s, backup %.3f s\n", verify, backup);
  return status;
}

int Main(int argc, char** argv) {
  CommandLine app("The coordinator's store against the disk it is on");
  std::string directory = std::filesystem::temp_directory_path().string();
  std::vector<int> clients = {1, 8, 64};
  double seconds = 4;
  int64_t finished = 100'000, live = 1'000;
  app.Add("--directory", directory, "on the disk to measure").ShowDefault();
  app.Add("--clients", clients, "numbers of clients").ShowDefault();
  app.Add("--seconds", seconds, "of each measurement").ShowDefault();
  app.Add("--finished", finished, "finished jobs at the restart").ShowDefault();
  app.Add("--live", live, "live jobs at the restart").ShowDefault();
  if (const std::optional<int> ended = app.Parse(argc, argv, /*usage_exit_code=*/2)) return *ended;
  const ScratchDirectory scratch(directory);
  absl::Status status;
  for (const int count : clients) {
    if (status.ok()) status = Commits(scratch.path(), count, seconds);
  }
  if (status.ok()) status = Recovery(scratch.path(), finished, live, 2000);
  return ExitCode(status);
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::Main(argc, argv); }
