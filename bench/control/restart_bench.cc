// The duration of a restart, and the memory per job: a store is filled with finished and live jobs
// through the controller, then nibble-coordinator is started on it, and the time from its first
// instruction to its first answer is measured.
//
// Goal: with 100,000 finished and 1,000 live jobs, under five seconds.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/control/heartbeat_load.h"
#include "bench/limits.h"
#include "common/command_line/command_line.h"
#include "common/files/files.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "grpcpp/grpcpp.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "server/controller/clock.h"
#include "server/controller/controller.h"
#include "server/store/rocks_store.h"
#include "tests/service/coordinator_process.h"

namespace nibble::bench {
namespace {

// Bounds the changes in progress; enough are in progress to share synced writes.
class Flow {
 public:
  void Begin() {
    MutexLock lock(&mutex_);
    while (under_way_ >= kMax) room_.Wait(&mutex_);
    ++under_way_;
  }
  void End(const absl::Status& status) {
    MutexLock lock(&mutex_);
    --under_way_;
    failed_.Update(status);
    room_.SignalAll();
  }
  absl::Status Finish() {
    MutexLock lock(&mutex_);
    while (under_way_ > 0) room_.Wait(&mutex_);
    return failed_;
  }

 private:
  static constexpr int kMax = 256;
  Mutex mutex_;
  CondVar room_;
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
};

absl::Status Fill(const std::string& path, int64_t finished, int64_t live) {
  RocksStoreOptions store_options;
  store_options.cluster = "test";
  NIBBLE_ASSIGN_OR_RETURN(auto store, RocksStore::Open(path, store_options));
  const SystemClock clock;
  ControllerOptions options;
  options.cluster = "test";
  NIBBLE_ASSIGN_OR_RETURN(auto controller, Controller::Start(*store, clock, options, nullptr));
  Flow flow;
  for (int64_t job = 1; job <= finished + live; ++job) {
    v1::SubmitJobRequest submit;
    submit.set_request_id(absl::StrCat("request-submit-", job));
    submit.set_spec_yaml(JobSpecText(1));
    flow.Begin();
    controller->requests().Change<v1::SubmitJobResponse>(
        submit, "bench", [&flow](const auto& answer) { flow.End(answer.status()); });
    if (job > finished) continue;
    v1::KillJobRequest kill;
    kill.set_request_id(absl::StrCat("request-kill-", job));
    kill.set_job(absl::StrCat("bench-", job));
    flow.Begin();
    controller->requests().Change<v1::KillJobResponse>(
        kill, "bench", [&flow](const auto& answer) { flow.End(answer.status()); });
  }
  return flow.Finish();
}

// The seconds from its first instruction to its first answer.
absl::StatusOr<double> Restart(const std::string& program, const std::string& path, int64_t jobs,
                               int64_t& rss_bytes) {
  absl::StatusOr<std::unique_ptr<CoordinatorProcess>> coordinator = absl::UnknownError("not begun");
  grpc::Status status;
  v1::ListJobsResponse listed;
  const double seconds = Seconds([&] {
    coordinator = CoordinatorProcess::Start({.program = program, .store = path});
    if (!coordinator.ok()) return;
    grpc::ClientContext context;
    status = v1::Coordinator::NewStub((*coordinator)->Connect())->ListJobs(&context, {}, &listed);
  });
  if (!coordinator.ok()) return coordinator.status();
  if (!status.ok()) return absl::UnavailableError(status.error_message());
  if (listed.jobs_size() == 0 && jobs > 0) return absl::DataLossError("no jobs are there");
  rss_bytes = (*coordinator)->RssBytes();
  (*coordinator)->End();
  return seconds;
}

absl::Status Run(const std::string& program, const std::string& directory, int64_t finished,
                 int64_t live, int runs) {
  const ScratchDirectory scratch(directory);
  int64_t empty_bytes = 0;
  NIBBLE_ASSIGN_OR_RETURN(const double empty,
                          Restart(program, scratch.path() + "/empty", 0, empty_bytes));
  const std::string path = scratch.path() + "/store";
  absl::Status status;
  const double filling = Seconds([&] { status = Fill(path, finished, live); });
  NIBBLE_RETURN_IF_ERROR(status);
  const int64_t jobs = finished + live;
  std::printf("filled in %.1f s: %.0f changes/s; %.0f bytes per job on disk\n", filling,
              static_cast<double>(jobs + finished) / filling,
              static_cast<double>(TreeBytes(path)) / static_cast<double>(jobs));
  std::vector<double> seconds;
  int64_t bytes = 0;
  for (int run = 0; run < runs; ++run) {
    NIBBLE_ASSIGN_OR_RETURN(const double restart, Restart(program, path, jobs, bytes));
    seconds.push_back(restart);
  }
  const double median = Percentile(seconds, 50);
  std::printf(
      "restart with %lld finished and %lld live jobs: %.2f s (%.2f to %.2f in %d runs; empty %.2f "
      "s)   goal 5 s: %s\n",
      static_cast<long long>(finished), static_cast<long long>(live), median,
      Percentile(seconds, 0), Percentile(seconds, 100), runs, empty, Verdict(median < 5));
  std::printf("memory: %.0f MiB, empty %.0f MiB: %.1f KiB per job\n",
              static_cast<double>(bytes) / (1 << 20), static_cast<double>(empty_bytes) / (1 << 20),
              static_cast<double>(bytes - empty_bytes) / 1024 / static_cast<double>(jobs));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CommandLine app("A restart with many jobs, and what they cost in memory");
  std::string directory = std::filesystem::temp_directory_path().string();
  std::string program = CoordinatorProgram();
  int64_t finished = 100'000, live = 1'000;
  int runs = 3;
  app.Add("--directory", directory, "on the disk to measure").ShowDefault();
  app.Add("--coordinator", program, "the program").ShowDefault();
  app.Add("--finished", finished, "finished jobs").ShowDefault();
  app.Add("--live", live, "live jobs").ShowDefault();
  app.Add("--runs", runs, "restarts").ShowDefault();
  if (const std::optional<int> ended = app.Parse(argc, argv, /*usage_exit_code=*/2)) return *ended;
  return ExitCode(Run(program, directory, finished, live, runs));
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::Main(argc, argv); }
