// The coordinator's store against the disk it is on: durable commits per second from several
// clients beside the disk's own rate of small synced writes, and how long a restart takes.
//
// Goals: from 64 clients at least 1000 commits a second, or 20 times what the disk syncs, whichever
// is less; a restart with 100,000 finished and 1,000 live jobs in under five seconds.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/limits.h"
#include "common/command_line/command_line.h"
#include "common/mutex.h"
#include "server/store/rocks_store.h"
#include "server/store/store.h"

namespace nibble::bench {
namespace {

constexpr size_t kBlock = 4096;

// Appends of 4 KiB per second, each made durable: the rate of a journal without group commit.
double SyncRate(const std::string& directory, double seconds) {
  const std::string path = directory + "/sync_rate";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return 0;
  const std::string block(kBlock, 'x');
  int64_t done = 0;
  const auto start = std::chrono::steady_clock::now();
  double took = 0;
  while (took < seconds) {
    if (write(fd, block.data(), block.size()) != static_cast<ssize_t>(block.size())) break;
    if (fdatasync(fd) != 0) break;
    ++done;
    took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  (void)close(fd);
  (void)unlink(path.c_str());
  return took > 0 ? static_cast<double>(done) / took : 0;
}

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
          .topics = {key},
          .changes = {{"job", key, RandomBytes(seed + 1, entity_bytes)}}};
}

absl::StatusOr<std::unique_ptr<RocksStore>> Open(const std::string& path) {
  RocksStoreOptions options;
  options.cluster = "bench";
  return RocksStore::Open(path, options);
}

absl::Status Commits(const std::string& directory, int clients, double seconds) {
  const std::string path = directory + "/commits";
  auto store = Open(path);
  if (!store.ok()) return store.status();
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
        mine.push_back(Seconds([&] { status = (*store)->Commit(std::move(batch)).status(); }));
      }
      MutexLock lock(&mutex);
      latencies.insert(latencies.end(), mine.begin(), mine.end());
      failed.Update(status);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!failed.ok()) return failed;
  const double sync_rate = std::max(sync_before, SyncRate(directory, seconds / 4));
  const StoreMetrics metrics = (*store)->Metrics();
  std::sort(latencies.begin(), latencies.end());
  const auto at = [&](double part) {
    return latencies[static_cast<size_t>(part * static_cast<double>(latencies.size() - 1))] * 1e3;
  };
  const double rate = static_cast<double>(latencies.size()) / took;
  std::printf(
      "%3d clients  %8.0f commits/s   disk %7.0f syncs/s   ratio %6.2f   p50 %7.2f ms  p99 %7.2f "
      "ms   %6.1f batches/sync\n",
      clients, rate, sync_rate, rate / sync_rate, at(0.5), at(0.99),
      metrics.batches_per_write.sum / static_cast<double>(metrics.batches_per_write.count));
  if (clients == 64) {
    const double goal = std::min(1000.0, 20 * sync_rate);
    std::printf("             goal %.0f commits/s: %s\n", goal, rate >= goal ? "met" : "MISSED");
  }
  store->reset();
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
  return absl::OkStatus();
}

int64_t TreeBytes(const std::string& path) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

absl::Status Recovery(const std::string& directory, int64_t finished, int64_t live,
                      size_t entity_bytes) {
  const std::string path = directory + "/recovery";
  {
    // They outlive the store, whose thread uses them.
    Mutex mutex;
    absl::Status failed;  // guarded by mutex
    auto store = Open(path);
    if (!store.ok()) return store.status();
    for (int64_t job = 0; job < finished + live; ++job) {
      const auto id = static_cast<uint64_t>(job);
      // Every 256th waits, so that no more batches are in flight than the store accepts.
      StoreBatch batch = JobChange(id, id, entity_bytes);
      absl::Status status;
      if (job % 256 == 0) {
        status = (*store)->Commit(std::move(batch)).status();
      } else {
        status = (*store)
                     ->Append(std::move(batch),
                              [&](absl::Status result) {
                                MutexLock lock(&mutex);
                                failed.Update(result);
                              })
                     .status();
      }
      if (!status.ok()) return status;
    }
    store->reset();
    if (!failed.ok()) return failed;
  }
  double open_seconds = 0, load_seconds = 0;
  int64_t loaded = 0, bytes = 0;
  auto store = absl::StatusOr<std::unique_ptr<RocksStore>>(absl::UnknownError("not opened"));
  open_seconds = Seconds([&] { store = Open(path); });
  if (!store.ok()) return store.status();
  absl::Status status;
  load_seconds = Seconds([&] {
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
      static_cast<double>(bytes) / 1e6 / load_seconds, total < 5 ? "met" : "MISSED");
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
  std::string path = directory + "/nibble_store_bench_XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    std::fprintf(stderr, "cannot make a directory in %s\n", directory.c_str());
    return 1;
  }
  absl::Status status;
  for (const int count : clients) {
    if (status.ok()) status = Commits(path, count, seconds);
  }
  if (status.ok()) status = Recovery(path, finished, live, 2000);
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::Main(argc, argv); }
