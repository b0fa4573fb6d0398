// Heartbeats of simulated workers, each reporting once a second:
//   controller  in this process, without a network: the time to take a report and to answer it
//   streams     over gRPC to a real nibble-coordinator, one stream per worker, many per connection:
//               the time from sending a report to its answer; the workers may be spread over
//               several processes
// With `controller`, a tenth of the workers runs ranks and reports a sampled step each time.
//
// Goals for 10,000 workers: p99 of handling under 10 ms, and less than one core for all of them.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/control/heartbeat_load.h"
#include "bench/limits.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/controller/clock.h"
#include "server/controller/controller.h"
#include "server/store/store_testing.h"
#include "tests/service/coordinator_process.h"

namespace nibble::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr double kGoalMs = 10;
constexpr std::chrono::seconds kRegistering(5);  // registering is slower than a heartbeat

void Print(const char* what, int workers, const std::vector<double>& seconds, double cores) {
  const double p99 = 1e3 * Percentile(seconds, 99);
  std::printf(
      "%-10s %6d workers  %8zu reports   p50 %7.3f ms  p99 %7.3f ms  goal %.0f ms: %s   "
      "%.2f cores  goal 1: %s\n",
      what, workers, seconds.size(), 1e3 * Percentile(seconds, 50), p99, kGoalMs,
      Verdict(p99 < kGoalMs), cores, Verdict(cores < 1));
  std::fflush(stdout);
}

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

absl::Status InProcess(int workers, int rounds) {
  NIBBLE_ASSIGN_OR_RETURN(auto store,
                          MemoryStore::Open(std::make_shared<MemoryDisk>(), {.cluster = "bench"}));
  ManualClock clock(1'000'000'000);
  ControllerOptions options;
  options.cluster = "bench";
  NIBBLE_ASSIGN_OR_RETURN(auto controller, Controller::Start(*store, clock, options, nullptr));
  std::vector<std::shared_ptr<WorkerSession>> sessions;
  std::vector<v1::ConnectRequest> reports;
  v1::ConnectResponse desired;
  const auto report = [&](int w) {
    const auto taken = std::make_shared<std::promise<absl::Status>>();
    controller->reports().Take(sessions[w], reports[w],
                               [taken](const absl::Status& status) { taken->set_value(status); });
    const absl::Status status = taken->get_future().get();
    if (status.ok()) desired = controller->reports().Desired(sessions[w]);
    return status;
  };
  for (int w = 0; w < workers; ++w) {
    NIBBLE_ASSIGN_OR_RETURN(auto session, controller->sessions().Open(nullptr));
    sessions.push_back(std::move(session));
    reports.push_back(HeartbeatOf(w));
    NIBBLE_RETURN_IF_ERROR(report(w));
  }
  for (int j = 0; j < workers / 10; ++j) {
    v1::SubmitJobRequest submit;
    submit.set_request_id(absl::StrCat("request-", j));
    submit.set_spec_yaml(JobSpecText(8));
    absl::Status submitted;
    controller->requests().Change<v1::SubmitJobResponse>(
        submit, "bench", [&](const auto& response) { submitted = response.status(); });
    controller->Settle();
    NIBBLE_RETURN_IF_ERROR(submitted);
  }
  controller->Tick();
  controller->Settle();
  int running = 0;
  for (int w = 0; w < workers; ++w) {
    NIBBLE_RETURN_IF_ERROR(report(w));
    for (const v1::DesiredGang& gang : desired.gangs()) {
      v1::GangReport& own = *reports[w].add_gangs();
      own.set_job(gang.job());
      own.set_attempt(gang.attempt());
      own.set_phase(v1::RANK_PHASE_RUNNING);
      for (int r = 0; r < gang.slots_size(); ++r) own.add_ranks()->set_rank(gang.first_rank() + r);
      own.add_samples();
      ++running;
    }
  }
  std::vector<double> seconds, tick_seconds;
  double cpu = 0, tick_cpu = 0;
  for (int round = 0; round < rounds; ++round) {
    clock.Advance(1000);
    for (int w = 0; w < workers; ++w) {
      for (v1::GangReport& gang : *reports[w].mutable_gangs()) {
        gang.set_next_step(round + 1);
        gang.mutable_samples(0)->set_step(round);
      }
      const double cpu_before = CpuSeconds();
      const auto start = SteadyClock::now();
      NIBBLE_RETURN_IF_ERROR(report(w));
      seconds.push_back(Since(start));
      cpu += CpuSeconds() - cpu_before;
    }
    const double cpu_before = CpuSeconds();
    const auto start = SteadyClock::now();
    controller->Tick();
    controller->Settle();
    tick_seconds.push_back(Since(start));
    tick_cpu += CpuSeconds() - cpu_before;
  }
  std::printf(
      "%d gangs run; ticks: p50 %.1f ms  p99 %.1f ms, %.2f cores at one that plans a second\n",
      running, 1e3 * Percentile(tick_seconds, 50), 1e3 * Percentile(tick_seconds, 99),
      tick_cpu / rounds);
  Print("controller", workers, seconds, cpu / rounds);
  return absl::OkStatus();
}

// Runs this program once for each share of the workers.
absl::StatusOr<HeartbeatAnswers> LoadInProcesses(const HeartbeatLoad& load, int processes) {
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error);
  std::vector<FILE*> pipes;
  for (int share = 0; share < processes; ++share) {
    const std::string command = absl::StrCat(
        "exec '", self, "' load --target ", load.target, " --workers ", load.workers, " --share ",
        share, " --of ", processes, " --connections ", std::max(1, load.connections / processes),
        " --begin-unix-ms ", load.begin_unix_ms, " --seconds ", load.seconds);
    pipes.push_back(popen(command.c_str(), "r"));
  }
  HeartbeatAnswers all;
  bool whole = true;
  for (FILE* const pipe : pipes) {
    whole = pipe != nullptr && ReadAnswers(pipe, all) && pclose(pipe) == 0 && whole;
  }
  if (!whole) return absl::UnavailableError("a process of the load failed");
  return all;
}

absl::Status OverStreams(const std::string& program, const std::string& directory,
                         HeartbeatLoad load, int processes) {
  const ScratchDirectory scratch(directory);
  NIBBLE_ASSIGN_OR_RETURN(auto coordinator,
                          CoordinatorProcess::Start({.program = program,
                                                     .store = scratch.path() + "/store",
                                                     .flags = {"--requests-per-second", "0"}}));
  const int64_t rss_before = coordinator->RssBytes();
  const auto begin = std::chrono::system_clock::now() + kRegistering;
  load.target = coordinator->address();
  load.begin_unix_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(begin.time_since_epoch()).count();
  auto answers = std::async(std::launch::async, LoadInProcesses, load, processes);
  std::this_thread::sleep_until(begin);
  const double cpu_before = coordinator->CpuSeconds();
  std::this_thread::sleep_until(begin + std::chrono::duration<double>(load.seconds));
  const double cores = (coordinator->CpuSeconds() - cpu_before) / load.seconds;
  const int64_t rss = coordinator->RssBytes();
  NIBBLE_ASSIGN_OR_RETURN(const HeartbeatAnswers heard, answers.get());
  Print("streams", load.workers, heard.seconds, cores);
  std::printf("%lld of %d registered, %lld reports left out; %.1f KiB of memory per worker\n",
              static_cast<long long>(heard.answered), load.workers,
              static_cast<long long>(heard.late),
              static_cast<double>(rss - rss_before) / 1024 / load.workers);
  if (heard.ended > 0) {
    return absl::UnavailableError(
        absl::StrCat(heard.ended, " streams ended, such as: ", heard.why));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CommandLine app("Heartbeats of many workers");
  std::string directory = std::filesystem::temp_directory_path().string();
  std::string program = CoordinatorProgram();
  HeartbeatLoad load = {.workers = 10'000, .connections = 16, .seconds = 10};
  int rounds = 10, processes = 1;
  app.Add("--directory", directory, "directory of the coordinator's store").ShowDefault();
  app.Add("--coordinator", program, "path of nibble-coordinator").ShowDefault();
  app.Add("--workers", load.workers, "count").ShowDefault();
  app.Add("--connections", load.connections, "connections that the streams share").ShowDefault();
  app.Add("--processes", processes, "processes of the workers with streams")
      .InRange(1, 64)
      .ShowDefault();
  app.Add("--rounds", rounds, "rounds of reports without a network").ShowDefault();
  app.Add("--seconds", load.seconds, "duration of the reports over streams").ShowDefault();
  const Command share = app.AddSubcommand("load", "One process of the load; this program runs it");
  share.Add("--target", load.target, "host:port").Required();
  share.Add("--workers", load.workers, "of all processes").Required();
  share.Add("--share", load.share, "which, from 0").Required();
  share.Add("--of", load.of, "count").Required();
  share.Add("--connections", load.connections, "of this process").Required();
  share.Add("--begin-unix-ms", load.begin_unix_ms, "of what counts").Required();
  share.Add("--seconds", load.seconds, "from then on").Required();
  if (const std::optional<int> ended = app.Parse(argc, argv, /*usage_exit_code=*/2)) return *ended;
  if (share.Parsed()) {
    WriteAnswers(GenerateHeartbeats(load), stdout);
    return 0;
  }
  absl::Status status = InProcess(load.workers, rounds);
  if (status.ok()) status = OverStreams(program, directory, load, processes);
  return ExitCode(status);
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::Main(argc, argv); }
