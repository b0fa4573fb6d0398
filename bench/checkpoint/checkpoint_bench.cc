// Checkpoints against the disk and the memory of the machine: how fast one is written beside the
// disk's own sequential write and fsync, how long training waits beside a memcpy of the same bytes,
// and how long a resume takes beside the disk's own read. Every limit is measured between the
// repetitions; the figures are medians.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "bench/checkpoint/disk_limit.h"
#include "bench/limits.h"
#include "common/command_line/command_line.h"
#include "common/files/files.h"
#include "common/status_macros.h"
#include "worker/checkpoint/checkpoint_host.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/manifest.h"
#include "worker/link/checkpoint_client.h"
#include "worker/link/link_host.h"
#include "worker/link/rank_link.h"

namespace nibble::bench {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// FP32 master weights and two moments per layer, as a trainer has them.
std::vector<TensorSlice> StateOf(int64_t bytes) {
  constexpr int64_t kLayers = 8;
  const int64_t columns = bytes / (3 * kLayers * 256 * 4);
  std::vector<TensorSlice> slices;
  for (const char* kind : {"master", "adam.m", "adam.v"}) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      slices.push_back({absl::StrCat(kind, "/layers.", layer, ".weight"),
                        FileDType::kF32,
                        {256, columns},
                        0,
                        256 * columns});
    }
  }
  return slices;
}

struct Figures {
  std::vector<double> write, disk_direct, disk_cached, stall, copy, resume, disk_read, remove;
};

void Line(const char* what, double bytes, double seconds, const char* limit_name, double limit) {
  std::printf("  %-22s %8.1f ms  %6.2f GB/s   %s %8.1f ms  %6.2f GB/s   ratio %.2f\n", what,
              seconds * 1e3, bytes / 1e9 / seconds, limit_name, limit * 1e3, bytes / 1e9 / limit,
              limit / seconds);
}

absl::Status Measure(const std::string& directory, int64_t bytes, int repeat) {
  const std::string path = directory + "/store";
  CheckpointStore::Options options = {.identity = {"", "bench"}, .retention = {.keep_last = 2}};
  NIBBLE_ASSIGN_OR_RETURN(const auto store, CheckpointStore::Open(path, options));
  const std::vector<TensorSlice> slices = StateOf(bytes);
  int64_t state_bytes = 0;
  for (const TensorSlice& slice : slices) state_bytes += SliceBytes(slice);
  std::vector<uint64_t> state(state_bytes / 8);
  std::mt19937_64 random(1);
  for (uint64_t& word : state) word = random();
  const auto* from = reinterpret_cast<const std::byte*>(state.data());

  DiskLimit disk(directory, state_bytes);
  Figures figures;
  absl::Status status;
  bool direct = true;
  NIBBLE_ASSIGN_OR_RETURN(
      const auto host,
      CheckpointHost::Start({.store = store.get(), .attempt = 1, .ranks = 1, .clock = Now}));
  NIBBLE_ASSIGN_OR_RETURN(
      const auto link, LinkHost::Start({.address = directory + "/link",
                                        .attempt = 1,
                                        .clock = [] { return static_cast<int64_t>(Now() * 1e3); },
                                        .snapshots = host.get()}));
  NIBBLE_ASSIGN_OR_RETURN(const auto rank,
                          RankLink::Connect({.address = link->address(), .attempt = 1}));
  NIBBLE_ASSIGN_OR_RETURN(const auto client, CheckpointClient::Create(*rank, slices, Now));
  std::vector<uint64_t> other(state.size());

  for (int i = 0; i <= repeat && status.ok(); ++i) {
    figures.disk_direct.push_back(disk.WriteDirect());
    figures.disk_read.push_back(disk.ReadDirect());
    figures.disk_cached.push_back(disk.WriteCached());
    figures.copy.push_back(Seconds([&] { std::memcpy(other.data(), from, state_bytes); }));
    const int64_t step = i + 1;
    const auto copy = [&](absl::Span<const absl::Span<std::byte>> buffers) {
      const std::byte* at = from;
      for (const absl::Span<std::byte>& buffer : buffers) {
        std::memcpy(buffer.data(), at, buffer.size());
        at += buffer.size();
      }
      return absl::OkStatus();
    };
    disk.Settle();
    status = client->Snapshot(
        {.identity = options.identity, .step = step, .attempt = 1, .world = 1}, copy);
    NIBBLE_RETURN_IF_ERROR(status);
    const CheckpointClient::Outcome outcome = *client->Wait();
    NIBBLE_RETURN_IF_ERROR(outcome.status);
    direct = direct && outcome.direct;
    figures.stall.push_back(outcome.stall_seconds);
    figures.write.push_back(outcome.write_seconds);

    std::fill(other.begin(), other.end(), 0);
    absl::Status loaded;
    figures.resume.push_back(Seconds([&] {
      const auto reader = store->OpenCheckpoint(step);
      loaded = reader.status();
      auto* to = reinterpret_cast<std::byte*>(other.data());
      for (const TensorSlice& slice : slices) {
        if (!loaded.ok()) return;
        loaded = (*reader)->Load(slice.name, 0, slice.count,
                                 absl::MakeSpan(to, static_cast<size_t>(SliceBytes(slice))));
        to += SliceBytes(slice);
      }
    }));
    NIBBLE_RETURN_IF_ERROR(loaded);
    if (other != state) return absl::DataLossError("the loaded state differs from the saved one");
    figures.remove.push_back(Seconds([&] { status.Update(store->Delete(step)); }));
    if (i == 0) figures = {};  // the first warms up
  }

  const double written = static_cast<double>(state_bytes);
  const double cached = Median(figures.disk_cached), uncached = Median(figures.disk_direct);
  const bool direct_is_faster = uncached > 0 && uncached < cached;
  std::printf("%.0f MB of state, %s:\n", written / 1e6,
              direct ? "written past the page cache" : "written through the page cache");
  Line("write and commit", written, Median(figures.write),
       direct_is_faster ? "disk, O_DIRECT + fsync" : "disk, cached + fsync  ",
       direct_is_faster ? uncached : cached);
  Line("stall of training", written, Median(figures.stall), "memcpy                ",
       Median(figures.copy));
  Line("open and load", written, Median(figures.resume), "disk read, O_DIRECT   ",
       Median(figures.disk_read));
  std::printf("  deleting takes %.1f ms; the disk with cached write + fsync: %.2f GB/s\n",
              Median(figures.remove) * 1e3, written / 1e9 / cached);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CommandLine app("Checkpoints against the disk's own speed");
  std::string directory = std::filesystem::temp_directory_path().string();
  std::vector<int64_t> megabytes = {100, 2048};
  int repeat = 5;
  app.Add("--directory", directory, "on the disk to measure").ShowDefault();
  app.Add("--mb", megabytes, "sizes of state").ShowDefault();
  app.Add("--repeat", repeat, "measurements of each").ShowDefault();
  if (const std::optional<int> ended = app.Parse(argc, argv, /*usage_exit_code=*/2)) return *ended;
  const ScratchDirectory scratch(directory);
  absl::Status status;
  for (const int64_t mb : megabytes) {
    if (status.ok()) status = Measure(scratch.path(), mb * 1'000'000, repeat);
    status.Update(RemoveTree(scratch.path() + "/store"));
  }
  return ExitCode(status);
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::Main(argc, argv); }
