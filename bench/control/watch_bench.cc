// The cost of watches for changes and reports: heartbeats and changes against a real
// nibble-coordinator with many pending jobs, first alone, then while many watches of all jobs open
// at once and read their beginnings, then alone again; and its memory before, at most and after.
//
// The readers are a process of lower priority: in production they run on other machines, so they
// must not take the cores from what is measured.
//
// Goal: the 99th percentiles with the watches are at most twice those without them.

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/control/heartbeat_load.h"
#include "bench/limits.h"
#include "common/command_line/command_line.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "grpcpp/grpcpp.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "tests/service/coordinator_process.h"

namespace nibble::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMiB = 1 << 20;
constexpr int kSubmitters = 16;
constexpr int kReadersNicer = 10;                // above that of the measured processes
constexpr std::chrono::seconds kRegistering{3};  // time for workers to register
constexpr std::chrono::milliseconds kLook{20};   // between two readings of the memory

std::unique_ptr<grpc::ClientContext> Context() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->AddMetadata("nibble-author", "bench");
  return context;
}

// The readers, in a process of their own.

struct Reading {
  Mutex mutex;
  CondVar changed;
  int64_t messages ABSL_GUARDED_BY(mutex) = 0;
  int caught_up ABSL_GUARDED_BY(mutex) = 0;
  int ended ABSL_GUARDED_BY(mutex) = 0;
  std::string why ABSL_GUARDED_BY(mutex);
};

class Reader : public grpc::ClientReadReactor<v1::WatchJobsResponse> {
 public:
  Reader(v1::Coordinator::Stub& stub, Reading& reading) : reading_(reading), context_(Context()) {
    stub.async()->WatchJobs(context_.get(), &request_, this);
    StartRead(&message_);
    StartCall();
  }
  void Cancel() { context_->TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      MutexLock lock(&reading_.mutex);
      ++reading_.messages;
      if (message_.caught_up()) {
        ++reading_.caught_up;
        reading_.changed.SignalAll();
      }
    }
    StartRead(&message_);
  }
  void OnDone(const grpc::Status& status) override {
    MutexLock lock(&reading_.mutex);
    ++reading_.ended;
    if (status.error_code() != grpc::StatusCode::CANCELLED) reading_.why = status.error_message();
    reading_.changed.SignalAll();
  }

 private:
  Reading& reading_;
  const std::unique_ptr<grpc::ClientContext> context_;
  const v1::WatchJobsRequest request_;
  v1::WatchJobsResponse message_;
};

// Prints when every beginning was read, or when the time is over.
int Read(const std::string& target, int watches, int connections, double seconds) {
  setpriority(PRIO_PROCESS, 0, std::min(getpriority(PRIO_PROCESS, 0) + kReadersNicer, 19));
  std::vector<std::unique_ptr<v1::Coordinator::Stub>> stubs;
  for (int i = 0; i < connections; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stubs.push_back(v1::Coordinator::NewStub(
        grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments)));
  }
  Reading reading;
  std::vector<std::unique_ptr<Reader>> readers;
  const auto start = Clock::now();
  for (int i = 0; i < watches; ++i) {
    readers.push_back(std::make_unique<Reader>(*stubs[i % stubs.size()], reading));
  }
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(seconds));
  reading.mutex.Lock();
  while (reading.caught_up + reading.ended < watches) {
    if (reading.changed.WaitUntil(&reading.mutex, deadline)) break;
  }
  std::printf("%d of %d watches read their whole beginnings, %lld messages, in %.1f s%s%s\n",
              reading.caught_up, watches, static_cast<long long>(reading.messages), Since(start),
              reading.why.empty() ? "" : "; one ended: ", reading.why.c_str());
  std::fflush(stdout);
  reading.mutex.Unlock();
  for (const auto& reader : readers) reader->Cancel();
  MutexLock lock(&reading.mutex);
  while (reading.ended < watches) reading.changed.Wait(&reading.mutex);
  return 0;
}

// The measurements.

absl::Status SubmitJobs(const CoordinatorProcess& coordinator, int jobs) {
  std::vector<std::future<grpc::Status>> clients;
  for (int c = 0; c < kSubmitters; ++c) {
    clients.push_back(std::async(std::launch::async, [&coordinator, jobs, c] {
      const auto stub = v1::Coordinator::NewStub(coordinator.Connect());
      v1::SubmitJobRequest request;
      request.set_spec_yaml(JobSpecText(1));
      // No worker has this label: the jobs stay pending.
      v1::Label& label = *request.mutable_scheduling()->add_required_labels();
      label.set_key("bench");
      label.set_value("none");
      for (int i = c; i < jobs; i += kSubmitters) {
        request.set_request_id(absl::StrCat("request-", i));
        v1::SubmitJobResponse response;
        grpc::Status status = stub->SubmitJob(Context().get(), request, &response);
        if (!status.ok()) return status;
      }
      return grpc::Status::OK;
    }));
  }
  absl::Status all;
  for (auto& client : clients) {
    const grpc::Status status = client.get();
    if (!status.ok()) all = absl::UnavailableError(status.error_message());
  }
  return all;
}

struct Phase {
  std::vector<double> commits;  // seconds
  HeartbeatAnswers heartbeats;
  int64_t peak_rss = 0;
};

// Runs `meanwhile` concurrently; the phase lasts until both have ended.
absl::StatusOr<Phase> Measure(const CoordinatorProcess& coordinator, HeartbeatLoad load,
                              const std::function<void()>& meanwhile) {
  Phase phase;
  const auto begin = std::chrono::system_clock::now() + kRegistering;
  load.target = coordinator.address();
  load.begin_unix_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(begin.time_since_epoch()).count();
  auto heartbeats = std::async(std::launch::async, GenerateHeartbeats, load);
  std::this_thread::sleep_until(begin);
  auto beside = std::async(std::launch::async, meanwhile);
  std::atomic<bool> over = false;
  auto memory = std::async(std::launch::async, [&] {
    int64_t peak = 0;
    for (; !over; std::this_thread::sleep_for(kLook)) {
      peak = std::max(peak, coordinator.RssBytes());
    }
    return peak;
  });
  const auto stub = v1::Coordinator::NewStub(coordinator.Connect());
  v1::SetJobPriorityRequest request;
  request.set_job("bench-1");
  absl::Status status;
  const auto start = Clock::now();
  for (int64_t i = 0; Since(start) < load.seconds && status.ok(); ++i) {
    request.set_request_id(absl::StrCat("change-", load.begin_unix_ms, "-", i));
    request.set_priority(static_cast<int32_t>(i % 100));
    v1::SetJobPriorityResponse response;
    const auto asked = Clock::now();
    const grpc::Status changed = stub->SetJobPriority(Context().get(), request, &response);
    if (!changed.ok()) status = absl::UnavailableError(changed.error_message());
    phase.commits.push_back(Since(asked));
  }
  phase.heartbeats = heartbeats.get();
  beside.get();
  over = true;
  phase.peak_rss = memory.get();
  if (phase.heartbeats.ended > 0) status = absl::UnavailableError(phase.heartbeats.why);
  NIBBLE_RETURN_IF_ERROR(status);
  return phase;
}

void Print(const char* what, const Phase& phase) {
  std::printf(
      "%-22s  heartbeats p50 %7.2f ms  p99 %7.2f ms   commits p50 %7.2f ms  p99 %7.2f ms  "
      "%5.0f/s   memory at most %6.1f MiB\n",
      what, 1e3 * Percentile(phase.heartbeats.seconds, 50),
      1e3 * Percentile(phase.heartbeats.seconds, 99), 1e3 * Percentile(phase.commits, 50),
      1e3 * Percentile(phase.commits, 99),
      static_cast<double>(phase.commits.size()) /
          std::max(1e-9, std::accumulate(phase.commits.begin(), phase.commits.end(), 0.0)),
      static_cast<double>(phase.peak_rss) / kMiB);
  std::fflush(stdout);
}

struct Setting {
  std::string directory = std::filesystem::temp_directory_path().string();
  std::string program = CoordinatorProgram();
  int jobs = 10'000;
  int watches = 1000;
  int connections = 20;
  HeartbeatLoad load = {.workers = 200, .connections = 4, .seconds = 20};
};

absl::StatusOr<bool> Compare(const Setting& setting) {
  const ScratchDirectory scratch(setting.directory);
  NIBBLE_ASSIGN_OR_RETURN(
      auto coordinator,
      CoordinatorProcess::Start({.program = setting.program,
                                 .store = scratch.path() + "/store",
                                 .flags = {"--requests-per-second", "0", "--max-watches",
                                           absl::StrCat(setting.watches)}}));
  NIBBLE_RETURN_IF_ERROR(SubmitJobs(*coordinator, setting.jobs));
  std::printf(
      "%d jobs wait, %d workers report once a second, one client changes a job after the "
      "other; %d watches\n",
      setting.jobs, setting.load.workers, setting.watches);
  const int64_t at_first = coordinator->RssBytes();
  NIBBLE_ASSIGN_OR_RETURN(const Phase alone, Measure(*coordinator, setting.load, [] {}));
  Print("alone", alone);
  const int64_t before = coordinator->RssBytes();
  std::error_code error;
  const std::string command =
      absl::StrCat("exec '", std::filesystem::read_symlink("/proc/self/exe", error).string(),
                   "' read --target ", coordinator->address(), " --watches ", setting.watches,
                   " --connections ", setting.connections, " --seconds ", setting.load.seconds);
  const double cpu_before = coordinator->CpuSeconds();
  const auto start = Clock::now();
  std::string words;
  const auto read = [&] {
    FILE* const pipe = popen(command.c_str(), "r");
    char line[512];
    while (pipe != nullptr && std::fgets(line, sizeof line, pipe) != nullptr) words += line;
    if (pipe != nullptr) pclose(pipe);
  };
  NIBBLE_ASSIGN_OR_RETURN(const Phase watched, Measure(*coordinator, setting.load, read));
  const double cores = (coordinator->CpuSeconds() - cpu_before) / Since(start);
  Print("while watches open", watched);
  std::printf("%scoordinator %.2f cores\n", words.c_str(), cores);
  const int64_t closed = coordinator->RssBytes();
  NIBBLE_ASSIGN_OR_RETURN(const Phase after, Measure(*coordinator, setting.load, [] {}));
  Print("alone again", after);
  std::printf(
      "memory: %.1f MiB with the jobs, then after each phase %.1f alone, %.1f (at most %.1f) with "
      "watches, %.1f alone again\n",
      static_cast<double>(at_first) / kMiB, static_cast<double>(before) / kMiB,
      static_cast<double>(closed) / kMiB, static_cast<double>(watched.peak_rss) / kMiB,
      static_cast<double>(coordinator->RssBytes()) / kMiB);
  const auto ratio = [](const std::vector<double>& with, const std::vector<double>& one,
                        const std::vector<double>& other) {
    return Percentile(with, 99) / std::max(Percentile(one, 99), Percentile(other, 99));
  };
  const double heartbeats =
      ratio(watched.heartbeats.seconds, alone.heartbeats.seconds, after.heartbeats.seconds);
  const double commits = ratio(watched.commits, alone.commits, after.commits);
  const bool met = heartbeats <= 2 && commits <= 2;
  std::printf(
      "p99 with watches over the greater without: heartbeats %.2f, commits %.2f   goal 2: "
      "%s\n",
      heartbeats, commits, Verdict(met));
  return met;
}

int Main(int argc, char** argv) {
  CommandLine app("Heartbeats and changes while watches open");
  Setting setting;
  std::string target;
  app.Add("--directory", setting.directory, "directory of the store").ShowDefault();
  app.Add("--coordinator", setting.program, "path of nibble-coordinator").ShowDefault();
  app.Add("--jobs", setting.jobs, "pending jobs").ShowDefault();
  app.Add("--watches", setting.watches, "watches of all jobs").ShowDefault();
  app.Add("--connections", setting.connections, "connections that the watches share").ShowDefault();
  app.Add("--workers", setting.load.workers, "workers that report").ShowDefault();
  app.Add("--seconds", setting.load.seconds, "duration of each phase").ShowDefault();
  const Command read = app.AddSubcommand("read", "The readers, for this program");
  read.Add("--target", target, "host:port").Required();
  read.Add("--watches", setting.watches, "watches of all jobs").Required();
  read.Add("--connections", setting.connections, "connections that the watches share").Required();
  read.Add("--seconds", setting.load.seconds, "time limit").Required();
  if (const std::optional<int> ended = app.Parse(argc, argv, /*usage_exit_code=*/2)) return *ended;
  if (read.Parsed()) {
    return Read(target, setting.watches, setting.connections, setting.load.seconds);
  }
  const absl::StatusOr<bool> met = Compare(setting);
  if (!met.ok()) std::fprintf(stderr, "%s\n", met.status().ToString().c_str());
  return !met.ok() ? 1 : *met ? 0 : 3;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::Main(argc, argv); }
