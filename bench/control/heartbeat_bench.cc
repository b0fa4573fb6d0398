// Heartbeats of simulated workers, each reporting once a second:
//   controller  in this process, without a network: what taking a report and answering it costs
//   streams     over gRPC to a real nibble-coordinator, one stream per worker, many per connection:
//               from the moment a report is sent to the answer, at the pace of the workers
// A tenth of the workers of the first kind runs ranks and reports a sampled step each time.
//
// Goals for 10,000 workers: p99 of handling under 10 ms, and less than one core for all of them.
#include <time.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "bench/control/measure.h"
#include "grpcpp/grpcpp.h"
#include "proto/nibble/v1/worker_link.grpc.pb.h"
#include "server/controller/clock.h"
#include "server/controller/controller.h"
#include "server/service/testing/coordinator_process.h"
#include "server/store/memory_store.h"

namespace nibble::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr double kGoalMs = 10;

v1::ConnectRequest ReportOf(int worker) {
  v1::ConnectRequest report;
  v1::WorkerIdentity& identity = *report.mutable_identity();
  identity.set_name(absl::StrCat("worker-", worker));
  identity.set_incarnation(1);
  identity.set_address(absl::StrCat("10.0.", worker / 256, ".", worker % 256, ":7000"));
  identity.set_slots(8);
  identity.set_version("bench");
  v1::Label& rack = *identity.add_labels();
  rack.set_key("rack");
  rack.set_value(absl::StrCat("r", worker / 32));
  identity.mutable_hardware()->set_device(v1::DEVICE_CPU);
  return report;
}

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
  auto store = MemoryStore::Open(std::make_shared<MemoryDisk>(), {.cluster = "bench"});
  if (!store.ok()) return store.status();
  ManualClock clock(1'000'000'000);
  ControllerOptions options;
  options.cluster = "bench";
  auto controller = Controller::Start(**store, clock, options, nullptr);
  if (!controller.ok()) return controller.status();
  std::vector<std::shared_ptr<WorkerSession>> sessions;
  std::vector<v1::ConnectRequest> reports;
  v1::ConnectResponse desired;
  const auto report = [&](int w) {
    std::promise<absl::Status> taken;
    (*controller)->Report(sessions[w], reports[w], [&taken](const absl::Status& status) {
      taken.set_value(status);
    });
    const absl::Status status = taken.get_future().get();
    if (status.ok()) desired = (*controller)->Desired(sessions[w]);
    return status;
  };
  for (int w = 0; w < workers; ++w) {
    auto session = (*controller)->OpenSession(nullptr);
    if (!session.ok()) return session.status();
    sessions.push_back(*session);
    reports.push_back(ReportOf(w));
    if (const absl::Status status = report(w); !status.ok()) return status;
  }
  for (int j = 0; j < workers / 10; ++j) {
    v1::SubmitJobRequest submit;
    submit.set_request_id(absl::StrCat("request-", j));
    submit.set_spec_yaml(JobSpecText("bench", 8));
    const auto response = (*controller)->ChangeAndWait<v1::SubmitJobResponse>(submit, "bench");
    if (!response.ok()) return response.status();
  }
  (*controller)->Tick();
  (*controller)->Settle();
  int running = 0;
  for (int w = 0; w < workers; ++w) {
    if (const absl::Status status = report(w); !status.ok()) return status;
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
      if (const absl::Status status = report(w); !status.ok()) return status;
      seconds.push_back(std::chrono::duration<double>(SteadyClock::now() - start).count());
      cpu += CpuSeconds() - cpu_before;
    }
    const double cpu_before = CpuSeconds();
    const auto start = SteadyClock::now();
    (*controller)->Tick();
    (*controller)->Settle();
    tick_seconds.push_back(std::chrono::duration<double>(SteadyClock::now() - start).count());
    tick_cpu += CpuSeconds() - cpu_before;
  }
  std::printf(
      "%d gangs run; ticks: p50 %.1f ms  p99 %.1f ms, %.2f cores at one that plans a second\n",
      running, 1e3 * Percentile(tick_seconds, 50), 1e3 * Percentile(tick_seconds, 99),
      tick_cpu / rounds);
  Print("controller", workers, seconds, cpu / rounds);
  return absl::OkStatus();
}

// One worker's stream. Deletes nothing: the bench owns it until it is done.
class Worker : public grpc::ClientBidiReactor<v1::ConnectRequest, v1::ConnectResponse> {
 public:
  Worker(v1::WorkerLink::Stub& stub, int number) : report_(ReportOf(number)) {
    stub.async()->Connect(&context_, this);
    StartRead(&desired_);
    StartCall();
  }
  // Not while the report before is on its way: a worker that is late leaves one out.
  void Beat() {
    {
      std::lock_guard lock(mutex_);
      if (writing_ || sent_) {
        ++late_;
        return;
      }
      writing_ = true;
      sent_ = SteadyClock::now();
      report_.set_number(report_.number() + 1);
    }
    StartWrite(&report_);
  }
  void Finish() {
    context_.TryCancel();
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return done_; });
  }
  std::vector<double> TakeSeconds() {
    std::lock_guard lock(mutex_);
    return std::exchange(seconds_, {});
  }
  int64_t late() {
    std::lock_guard lock(mutex_);
    return late_;
  }
  // Why it ended before it was told to; empty: it did not.
  std::string ended_with() {
    std::lock_guard lock(mutex_);
    return ended_with_;
  }
  bool answered() {
    std::lock_guard lock(mutex_);
    return answers_ > 0;
  }

 private:
  void OnWriteDone(bool) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      std::lock_guard lock(mutex_);
      ++answers_;
      if (sent_) {
        seconds_.push_back(std::chrono::duration<double>(SteadyClock::now() - *sent_).count());
        sent_.reset();
      }
    }
    StartRead(&desired_);
  }
  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mutex_);
    if (status.error_code() != grpc::StatusCode::CANCELLED) {
      ended_with_ = status.error_message();
    }
    done_ = true;
    ended_.notify_all();
  }

  grpc::ClientContext context_;
  v1::ConnectRequest report_;
  v1::ConnectResponse desired_;
  std::mutex mutex_;
  std::condition_variable ended_;
  // Guarded by mutex_.
  bool writing_ = false, done_ = false;
  std::optional<SteadyClock::time_point> sent_;
  std::vector<double> seconds_;
  int64_t late_ = 0, answers_ = 0;
  std::string ended_with_;
};

absl::Status OverStreams(const std::string& program, const std::string& directory, int workers,
                         int connections, double seconds) {
  const ScratchDirectory scratch(directory);
  auto coordinator = CoordinatorProcess::Start({.program = program,
                                                .store = scratch.path() + "/store",
                                                .flags = {"--requests-per-second", "0"}});
  if (!coordinator.ok()) return coordinator.status();
  const int64_t rss_before = (*coordinator)->RssBytes();
  std::vector<std::unique_ptr<v1::WorkerLink::Stub>> stubs;
  for (int c = 0; c < connections; ++c) {
    stubs.push_back(v1::WorkerLink::NewStub((*coordinator)->Connect()));
  }
  std::vector<std::unique_ptr<Worker>> all;
  for (int w = 0; w < workers; ++w)
    all.push_back(std::make_unique<Worker>(*stubs[w % connections], w));
  // Every worker beats once a second, evenly over it.
  const auto pace = [&](double for_seconds) {
    const auto start = SteadyClock::now();
    const auto beats = static_cast<int64_t>(for_seconds * workers);
    for (int64_t beat = 0; beat < beats; ++beat) {
      std::this_thread::sleep_until(start +
                                    std::chrono::nanoseconds(beat * 1'000'000'000 / workers));
      all[static_cast<size_t>(beat % workers)]->Beat();
    }
  };
  pace(4);  // to register, which is a change of its own
  for (const auto& worker : all) worker->TakeSeconds();
  const double cpu_before = (*coordinator)->CpuSeconds();
  const auto start = SteadyClock::now();
  pace(seconds);
  const double took = std::chrono::duration<double>(SteadyClock::now() - start).count();
  const double cores = ((*coordinator)->CpuSeconds() - cpu_before) / took;
  std::vector<double> latencies;
  int64_t late = 0, answered = 0, ended = 0;
  std::string why;
  for (const auto& worker : all) {
    const std::vector<double> own = worker->TakeSeconds();
    latencies.insert(latencies.end(), own.begin(), own.end());
    late += worker->late();
    answered += worker->answered();
    if (worker->ended_with().empty()) continue;
    ++ended;
    why = worker->ended_with();
  }
  Print("streams", workers, latencies, cores);
  std::printf("%lld of %d registered, %lld reports left out; %.1f KiB of memory per worker\n",
              static_cast<long long>(answered), workers, static_cast<long long>(late),
              static_cast<double>((*coordinator)->RssBytes() - rss_before) / 1024 / workers);
  for (const auto& worker : all) worker->Finish();
  if (ended > 0) {
    return absl::UnavailableError(absl::StrCat(ended, " streams ended, such as: ", why));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Heartbeats of many workers");
  std::string directory = std::filesystem::temp_directory_path().string();
  std::string program = CoordinatorProgram();
  int workers = 10'000, connections = 16, rounds = 10;
  double seconds = 10;
  app.add_option("--directory", directory, "of the coordinator's store")->capture_default_str();
  app.add_option("--coordinator", program, "the program")->capture_default_str();
  app.add_option("--workers", workers, "count")->capture_default_str();
  app.add_option("--connections", connections, "that the streams share")->capture_default_str();
  app.add_option("--rounds", rounds, "of reports without a network")->capture_default_str();
  app.add_option("--seconds", seconds, "of reports over streams")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  absl::Status status = InProcess(workers, rounds);
  if (status.ok()) status = OverStreams(program, directory, workers, connections, seconds);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::Main(argc, argv); }
