// Honest callers beside floods from one identity: a real nibble-coordinator with TLS and tokens,
// callers that list jobs and check submissions at a fixed pace, and beside them in turn
//
//   nothing      the honest callers alone
//   bare         a flood of another server, which does nothing but refuse all calls: what the flood
//                takes from the machine that measures, whatever the coordinator does
//   patient      an identity that calls as fast as it gets answers, over many connections, far
//                above its rate
//   impatient    one that gives up its calls after a moment and calls again
//
// A flood is a process of lower priority: in production it comes from other machines, so it must
// not take the cores from what is measured. Phases alternate, so that other work of the machine
// affects all kinds alike; the impatient flood comes after the others, because the coordinator
// slows its address down for a while.
//
// Goal: the honest callers' 99th percentile beside a flood of the coordinator is at most twice that
// alone.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "bench/control/flood_load.h"
#include "bench/limits.h"
#include "common/command_line/command_line.h"
#include "common/files/files.h"
#include "common/identity/testing.h"
#include "common/status_macros.h"
#include "grpcpp/grpcpp.h"
#include "proto/nibble/v1/access.grpc.pb.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "server/access/authenticator.h"
#include "server/access/token_registry.h"
#include "tests/service/coordinator_process.h"

namespace nibble::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMiB = 1 << 20;
constexpr double kMsPerSecond = 1000;

constexpr char kSpec[] =
    "name: train\nmodel: tiny-hybrid\nrecipe: nvfp4\n"
    "data: {train: [corpus.txt], sequence: 128}\ntraining: {steps: 1000, batch: 16}\n";

struct Setting {
  std::string directory = "/tmp";
  std::string program = CoordinatorProgram();
  int rounds = 6;
  int callers = 4;
  double pace = 25;      // calls of each of them a second
  int patience_ms = 20;  // of the impatient flood
  FloodSetting flood;
};

class FloodedCoordinator {
 public:
  explicit FloodedCoordinator(const Setting& setting)
      : setting_(setting),
        scratch_(setting.directory),
        authority_(scratch_.path(), "lab"),
        client_(authority_.Issue("client", {PeerKind::kClient, "cli"})) {
    authority_.Issue("coordinator", {PeerKind::kCoordinator, ""});
  }

  absl::Status Start() {
    const std::string at = scratch_.path() + "/";
    NIBBLE_ASSIGN_OR_RETURN(
        coordinator_,
        CoordinatorProcess::Start(
            {.program = setting_.program,
             .store = at + "store",
             .flags = {"--tls-cert", at + "coordinator.pem", "--tls-key",
                       at + "coordinator-key.pem", "--tls-ca", at + "lab-ca.pem", "--audit-log",
                       at + "audit.jsonl", "--bootstrap-token-file", at + "bootstrap",
                       "--requests-per-second", "200", "--request-burst", "200"}}));
    NIBBLE_ASSIGN_OR_RETURN(honest_, MakeToken("honest"));
    NIBBLE_ASSIGN_OR_RETURN(flood_, MakeToken("flood"));
    return absl::OkStatus();
  }

  // Connects the honest callers.
  absl::Status Connect() {
    for (int i = 0; i < setting_.callers; ++i) {
      stubs_.push_back(v1::Coordinator::NewStub(ConnectTo(coordinator_->address(), client_)));
      v1::ListJobsResponse first;
      const grpc::Status status = stubs_.back()->ListJobs(As(honest_).get(), {}, &first);
      if (!status.ok()) {
        return absl::InternalError(absl::StrCat("first call: ", status.error_message()));
      }
    }
    return absl::OkStatus();
  }

  // Seconds of each honest call.
  std::vector<double> MeasureCalls() {
    std::vector<std::future<std::vector<double>>> callers;
    for (int i = 0; i < setting_.callers; ++i) {
      callers.push_back(std::async(std::launch::async, [this, i] { return Pace(i); }));
    }
    std::vector<double> all;
    for (auto& caller : callers) {
      const std::vector<double> one = caller.get();
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  enum class Beside { kNothing, kBare, kPatient, kImpatient };

  // Runs one phase. Returns the seconds of each honest call.
  std::vector<double> Measure(Beside beside) {
    FILE* bare = nullptr;
    FILE* flood = nullptr;
    if (beside == Beside::kBare) {
      bare = Run(absl::StrCat("bare --files ", scratch_.path(), " --seconds ",
                              setting_.flood.seconds + 3));
      int port = 0;
      if (bare != nullptr && std::fscanf(bare, "%d", &port) == 1) {
        flood = RunFlood(absl::StrCat("127.0.0.1:", port), 0);
      }
    } else if (beside != Beside::kNothing) {
      flood = RunFlood(coordinator_->address(),
                       beside == Beside::kImpatient ? setting_.patience_ms : 0);
    }
    // Let the flood connect and spend its burst before anything is measured.
    if (beside != Beside::kNothing) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const double cpu = coordinator_->CpuSeconds();
    const auto start = Clock::now();
    std::vector<double> seconds = MeasureCalls();
    PhaseTotals& totals = totals_[static_cast<size_t>(beside)];
    totals.cores.push_back((coordinator_->CpuSeconds() - cpu) / Since(start));
    most_ = std::max(most_, coordinator_->RssBytes());
    if (flood != nullptr) {
      long long served = 0, refused = 0, given_up = 0;
      double took = 0;
      if (std::fscanf(flood, "%lld %lld %lld %lf", &served, &refused, &given_up, &took) == 4) {
        totals.served += static_cast<double>(served);
        totals.refused += static_cast<double>(refused);
        totals.given_up += static_cast<double>(given_up);
        totals.seconds += took;
      } else {
        ++failed_;
      }
      pclose(flood);
    } else if (beside != Beside::kNothing) {
      ++failed_;
    }
    if (bare != nullptr) pclose(bare);
    totals.calls.insert(totals.calls.end(), seconds.begin(), seconds.end());
    return seconds;
  }

  struct PhaseTotals {
    std::vector<double> calls;                                  // seconds of each honest call
    std::vector<double> cores;                                  // of the coordinator, of each phase
    double served = 0, refused = 0, given_up = 0, seconds = 0;  // of the flood
  };
  const PhaseTotals& totals(Beside beside) const { return totals_[static_cast<size_t>(beside)]; }
  int64_t most_bytes() const { return most_; }
  CoordinatorProcess& process() { return *coordinator_; }
  int failed() const { return failed_; }

 private:
  absl::StatusOr<std::string> MakeToken(const std::string& name) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string bootstrap,
                            ReadWholeFile(scratch_.path() + "/bootstrap", 1000));
    NIBBLE_ASSIGN_OR_RETURN(std::string text, NewTokenText());
    v1::CreateTokenRequest request;
    request.set_name(name);
    request.set_role(v1::ROLE_SUBMITTER);
    request.set_secret_sha256(Sha256(text));
    v1::CreateTokenResponse made;
    const grpc::Status status =
        v1::Access::NewStub(ConnectTo(coordinator_->address(), client_))
            ->CreateToken(As(std::string(absl::StripAsciiWhitespace(bootstrap))).get(), request,
                          &made);
    if (status.ok()) return text;
    return absl::InternalError(absl::StrCat("token: ", status.error_message()));
  }

  // Starts a subcommand of this program. Its output can be read.
  static FILE* Run(const std::string& subcommand) {
    std::error_code error;
    return popen(
        absl::StrCat("exec '", std::filesystem::read_symlink("/proc/self/exe", error).string(),
                     "' ", subcommand)
            .c_str(),
        "r");
  }
  FILE* RunFlood(const std::string& target, int patience_ms) const {
    return Run(absl::StrCat("flood --target ", target, " --token ", flood_, " --files ",
                            scratch_.path(), " --connections ", setting_.flood.connections,
                            " --calls ", setting_.flood.calls, " --patience-ms ", patience_ms,
                            " --seconds ", setting_.flood.seconds + 1));
  }

  // Calls at the fixed pace, however long answers take: a call that begins late is timed from when
  // it was due.
  std::vector<double> Pace(int caller) {
    v1::Coordinator::Stub& stub = *stubs_[static_cast<size_t>(caller)];
    const auto step = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(1 / setting_.pace));
    std::vector<double> seconds;
    const auto begin = Clock::now() + step * caller / setting_.callers;
    const int calls = static_cast<int>(setting_.flood.seconds * setting_.pace);
    for (int i = 0; i < calls; ++i) {
      const auto due = begin + step * i;
      std::this_thread::sleep_until(due);
      grpc::Status status;
      if (i % 2 == 0) {
        v1::ListJobsResponse listed;
        status = stub.ListJobs(As(honest_).get(), {}, &listed);
      } else {
        v1::SubmitJobRequest request;
        request.set_request_id(absl::StrCat("request-", caller, "-", ++requests_));
        request.set_spec_yaml(kSpec);
        request.set_dry_run(true);
        v1::SubmitJobResponse response;
        status = stub.SubmitJob(As(honest_).get(), request, &response);
      }
      seconds.push_back(Since(due));
      if (!status.ok()) ++failed_;
    }
    return seconds;
  }

  const Setting& setting_;
  const ScratchDirectory scratch_;
  const TestAuthority authority_;
  const TlsFiles client_;
  std::unique_ptr<CoordinatorProcess> coordinator_;
  std::string honest_, flood_;  // tokens
  std::atomic<int64_t> requests_ = 0;
  std::atomic<int> failed_ = 0;
  std::vector<std::unique_ptr<v1::Coordinator::Stub>> stubs_;  // of the honest callers
  std::array<PhaseTotals, 4> totals_;
  int64_t most_ = 0;
};

absl::StatusOr<bool> Compare(const Setting& setting) {
  using Beside = FloodedCoordinator::Beside;
  FloodedCoordinator flooded(setting);
  NIBBLE_RETURN_IF_ERROR(flooded.Start());
  NIBBLE_RETURN_IF_ERROR(flooded.Connect());
  std::printf(
      "%d honest callers with %g calls a second each; a flood: %d connections with %d calls in "
      "flight, given up after %d ms if it is impatient; both identities may make 200 calls a "
      "second; %d rounds of %g s each\n",
      setting.callers, setting.pace, setting.flood.connections, setting.flood.calls,
      setting.patience_ms, setting.rounds, setting.flood.seconds);
  struct Kind {
    Beside beside;
    const char* name;
  };
  const Kind kinds[] = {{Beside::kNothing, "alone"},
                        {Beside::kBare, "flood of a bare server"},
                        {Beside::kPatient, "patient flood"},
                        {Beside::kImpatient, "impatient flood"}};
  (void)flooded.MeasureCalls();  // warm-up
  const int64_t before = flooded.process().RssBytes();
  for (int round = 0; round < setting.rounds; ++round) {
    std::printf("round %d, p99 in ms:", round + 1);
    for (const Kind& kind : kinds) {
      if (kind.beside == Beside::kImpatient) continue;
      const std::vector<double> calls = flooded.Measure(kind.beside);
      std::printf("  %s %.2f", kind.name, Percentile(calls, 99) * kMsPerSecond);
    }
    std::printf("\n");
  }
  for (int round = 0; round < setting.rounds; ++round) {
    const std::vector<double> calls = flooded.Measure(Beside::kImpatient);
    std::printf("round %d: impatient flood %.2f\n", round + 1,
                Percentile(calls, 99) * kMsPerSecond);
  }
  const double alone = Percentile(flooded.totals(Beside::kNothing).calls, 99);
  bool met = flooded.failed() == 0;
  for (const Kind& kind : kinds) {
    const FloodedCoordinator::PhaseTotals& totals = flooded.totals(kind.beside);
    const double p99 = Percentile(totals.calls, 99);
    const bool judged = kind.beside == Beside::kPatient || kind.beside == Beside::kImpatient;
    std::printf("%-22s  %zu calls: p50 %5.2f ms, p99 %5.2f ms; coordinator: %.2f cores", kind.name,
                totals.calls.size(), Percentile(totals.calls, 50) * kMsPerSecond,
                p99 * kMsPerSecond, Percentile(totals.cores, 50));
    if (kind.beside != Beside::kNothing) {
      std::printf(
          "; flood, calls a second: %.0f served, %.0f refused, %.0f given up; p99 over alone: "
          "%.2f",
          totals.served / totals.seconds, totals.refused / totals.seconds,
          totals.given_up / totals.seconds, p99 / alone);
    }
    if (judged) std::printf("   goal 2: %s", Verdict(p99 <= 2 * alone));
    std::printf("\n");
    met = met && (!judged || p99 <= 2 * alone);
  }
  std::printf("honest calls that failed: %d; coordinator: %.1f MiB before, at most %.1f\n",
              flooded.failed(), static_cast<double>(before) / kMiB,
              static_cast<double>(flooded.most_bytes()) / kMiB);
  return met;
}

int Main(int argc, char** argv) {
  CommandLine app("Honest callers beside a flood from one identity");
  Setting setting;
  FloodSetting& flood = setting.flood;
  app.Add("--directory", setting.directory, "directory of the store").ShowDefault();
  app.Add("--coordinator", setting.program, "path of nibble-coordinator").ShowDefault();
  app.Add("--rounds", setting.rounds, "pairs of phases").ShowDefault();
  app.Add("--callers", setting.callers, "honest callers, of one identity").ShowDefault();
  app.Add("--pace", setting.pace, "calls of each of them a second").ShowDefault();
  app.Add("--connections", flood.connections, "connections of the flood").ShowDefault();
  app.Add("--calls", flood.calls, "calls in flight on each of them").ShowDefault();
  app.Add("--seconds", flood.seconds, "duration of a phase").ShowDefault();
  app.Add("--patience-ms", setting.patience_ms, "of the impatient flood for an answer")
      .ShowDefault();
  const Command run = app.AddSubcommand("flood", "The flood, for this program");
  run.Add("--target", flood.target, "host:port").Required();
  run.Add("--token", flood.token, "its token").Required();
  run.Add("--files", flood.files, "directory of the certificates").Required();
  run.Add("--connections", flood.connections, "connections").Required();
  run.Add("--calls", flood.calls, "calls in flight on each of them").Required();
  run.Add("--patience-ms", flood.patience_ms, "for an answer; 0: unlimited").Required();
  run.Add("--seconds", flood.seconds, "duration").Required();
  const Command bare = app.AddSubcommand("bare", "The bare server, for this program");
  bare.Add("--files", flood.files, "directory of the certificates").Required();
  bare.Add("--seconds", flood.seconds, "duration").Required();
  if (const std::optional<int> ended = app.Parse(argc, argv, /*usage_exit_code=*/2)) return *ended;
  if (run.Parsed()) return Flood(flood);
  if (bare.Parsed()) return ServeBare(flood);
  const absl::StatusOr<bool> met = Compare(setting);
  if (!met.ok()) std::fprintf(stderr, "%s\n", met.status().ToString().c_str());
  return !met.ok() ? 1 : *met ? 0 : 3;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::Main(argc, argv); }
