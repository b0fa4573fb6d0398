// Durable submissions per second: clients that each submit a job, wait until it is durable, and
// submit the next, against a real nibble-coordinator over gRPC on loopback, compared with the
// disk's rate of small synced writes in the same run.
//
// Goal: from 64 clients at least 1000/s, or 20 times the disk's rate, whichever is less.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/control/heartbeat_load.h"
#include "bench/limits.h"
#include "common/command_line/command_line.h"
#include "grpcpp/grpcpp.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "tests/service/coordinator_process.h"

namespace nibble::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Outcome {
  std::vector<double> latencies;  // seconds
  std::string failure;
};

// One client, which submits job after job until the end.
Outcome Submit(const CoordinatorProcess& coordinator, int client, Clock::time_point end) {
  Outcome outcome;
  const auto stub = v1::Coordinator::NewStub(coordinator.Connect());
  v1::SubmitJobRequest request;
  request.set_spec_yaml(JobSpecText(1));
  for (int64_t i = 0; Clock::now() < end; ++i) {
    request.set_request_id(absl::StrCat("client-", client, "-", i));
    grpc::ClientContext context;
    context.AddMetadata("nibble-author", "bench");
    v1::SubmitJobResponse response;
    const auto start = Clock::now();
    const grpc::Status status = stub->SubmitJob(&context, request, &response);
    if (!status.ok()) {
      outcome.failure = absl::StrCat("code ", status.error_code(), ": ", status.error_message());
      return outcome;
    }
    outcome.latencies.push_back(Since(start));
  }
  return outcome;
}

int Main(int argc, char** argv) {
  CommandLine app("Durable submissions per second over gRPC");
  std::string directory = std::filesystem::temp_directory_path().string();
  std::string program = CoordinatorProgram();
  std::vector<int> counts = {1, 8, 64};
  double seconds = 4;
  app.Add("--directory", directory, "directory on the measured disk").ShowDefault();
  app.Add("--coordinator", program, "path of nibble-coordinator").ShowDefault();
  app.Add("--clients", counts, "numbers of clients").ShowDefault();
  app.Add("--seconds", seconds, "duration of each measurement").ShowDefault();
  if (const std::optional<int> ended = app.Parse(argc, argv, /*usage_exit_code=*/2)) return *ended;
  bool all_met = true;
  for (const int clients : counts) {
    // A store of its own, so that the number of pending jobs stays below the limit.
    const ScratchDirectory scratch(directory);
    auto coordinator = CoordinatorProcess::Start({.program = program,
                                                  .store = scratch.path() + "/store",
                                                  .flags = {"--requests-per-second", "0"}});
    if (!coordinator.ok()) return ExitCode(coordinator.status());
    const double sync_before = SyncRate(scratch.path(), seconds / 4);
    const double cpu_before = (*coordinator)->CpuSeconds();
    const auto start = Clock::now();
    const auto end =
        start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    std::vector<Outcome> outcomes(static_cast<size_t>(clients));
    std::vector<std::thread> threads;
    for (int c = 0; c < clients; ++c) {
      threads.emplace_back(
          [&, c] { outcomes[static_cast<size_t>(c)] = Submit(**coordinator, c, end); });
    }
    for (std::thread& thread : threads) thread.join();
    const double took = Since(start);
    const double cpu = ((*coordinator)->CpuSeconds() - cpu_before) / took;
    const double syncs = std::max(sync_before, SyncRate(scratch.path(), seconds / 4));
    std::vector<double> latencies;
    for (const Outcome& outcome : outcomes) {
      if (!outcome.failure.empty()) {
        std::fprintf(stderr, "%s\n", outcome.failure.c_str());
        return 1;
      }
      latencies.insert(latencies.end(), outcome.latencies.begin(), outcome.latencies.end());
    }
    const double rate = static_cast<double>(latencies.size()) / took;
    std::printf(
        "%3d clients  %7.0f submissions/s   disk %6.0f syncs/s   p50 %7.2f ms  p99 %7.2f ms   "
        "coordinator %.2f cores",
        clients, rate, syncs, 1e3 * Percentile(latencies, 50), 1e3 * Percentile(latencies, 99),
        cpu);
    if (clients == 64) {
      const double goal = std::min(1000.0, 20 * syncs);
      all_met &= rate >= goal;
      std::printf("   goal %.0f/s: %s", goal, Verdict(rate >= goal));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return all_met ? 0 : 3;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::Main(argc, argv); }
