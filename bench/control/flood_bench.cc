// Honest callers beside a flood from one identity: a real nibble-coordinator with TLS and tokens,
// callers that list jobs and check submissions at a fixed pace, and in every second phase another
// identity that calls as fast as it can over many connections, far above its rate.
//
// The flood is a process of lower priority: in production it comes from other machines, so it must
// not take the cores from what is measured. Phases alternate, so that what else the machine does
// falls on both kinds alike.
//
// Goal: the honest callers' 99th percentile beside the flood is at most twice that without it.

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "bench/limits.h"
#include "common/command_line/command_line.h"
#include "common/files/files.h"
#include "common/identity/credentials.h"
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
constexpr int kFloodNicer = 10;  // above that of the measured processes

constexpr char kSpec[] =
    "name: train\nmodel: tiny-hybrid\nrecipe: nvfp4\n"
    "data: {train: [corpus.txt], sequence: 128}\ntraining: {steps: 1000, batch: 16}\n";

std::shared_ptr<grpc::Channel> ConnectTo(const std::string& target, const TlsFiles& files) {
  const auto credentials = Credentials::Make(files);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, (*credentials)->ForChannelTo(PeerKind::kCoordinator),
                                   arguments);
}

std::unique_ptr<grpc::ClientContext> As(const std::string& token) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->AddMetadata("authorization", "Bearer " + token);
  return context;
}

// The flood, in a process of its own.

// Repeats a call until it is told to stop.
class Repeater {
 public:
  Repeater(v1::Coordinator::Stub& stub, const std::string& token, const std::atomic<bool>& stop,
           std::atomic<int64_t>& served, std::atomic<int64_t>& refused, std::atomic<int>& left)
      : stub_(stub), token_(token), stop_(stop), served_(served), refused_(refused), left_(left) {
    Call();
  }

 private:
  void Call() {
    context_ = As(token_);
    answer_.Clear();
    stub_.async()->ListJobs(context_.get(), &request_, &answer_,
                            [this](const grpc::Status& status) {
                              ++(status.ok() ? served_ : refused_);
                              if (stop_) {
                                --left_;
                                return;
                              }
                              Call();
                            });
  }

  v1::Coordinator::Stub& stub_;
  const std::string& token_;
  const std::atomic<bool>& stop_;
  std::atomic<int64_t>& served_;
  std::atomic<int64_t>& refused_;
  std::atomic<int>& left_;
  std::unique_ptr<grpc::ClientContext> context_;
  const v1::ListJobsRequest request_;
  v1::ListJobsResponse answer_;
};

struct FloodSetting {
  std::string target, token;
  TlsFiles files;
  int connections = 16;
  int calls = 16;  // in flight on each connection
  double seconds = 5;
};

int Flood(const FloodSetting& setting) {
  setpriority(PRIO_PROCESS, 0, std::min(getpriority(PRIO_PROCESS, 0) + kFloodNicer, 19));
  std::vector<std::unique_ptr<v1::Coordinator::Stub>> stubs;
  for (int i = 0; i < setting.connections; ++i) {
    stubs.push_back(v1::Coordinator::NewStub(ConnectTo(setting.target, setting.files)));
  }
  std::atomic<bool> stop = false;
  std::atomic<int64_t> served = 0, refused = 0;
  std::atomic<int> left = setting.connections * setting.calls;
  std::vector<std::unique_ptr<Repeater>> repeaters;
  const auto start = Clock::now();
  for (const auto& stub : stubs) {
    for (int i = 0; i < setting.calls; ++i) {
      repeaters.push_back(
          std::make_unique<Repeater>(*stub, setting.token, stop, served, refused, left));
    }
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(setting.seconds));
  stop = true;
  while (left > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::printf("%lld %lld %.3f\n", static_cast<long long>(served), static_cast<long long>(refused),
              Since(start));
  return 0;
}

// The measurement.

struct Setting {
  std::string directory = "/tmp";
  std::string program = CoordinatorProgram();
  int rounds = 6;
  int callers = 4;
  double pace = 25;  // calls of each caller a second
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

  // Seconds of each honest call of a phase.
  std::vector<double> Measure() {
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

  // Measure while the flood runs.
  std::vector<double> MeasureFlooded() {
    std::error_code error;
    const std::string command =
        absl::StrCat("exec '", std::filesystem::read_symlink("/proc/self/exe", error).string(),
                     "' flood --target ", coordinator_->address(), " --token ", flood_, " --files ",
                     scratch_.path(), " --connections ", setting_.flood.connections, " --calls ",
                     setting_.flood.calls, " --seconds ", setting_.flood.seconds + 1);
    FILE* const pipe = popen(command.c_str(), "r");
    // Its connections are made and its burst is spent before the measured phase.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    std::vector<double> seconds = Measure();
    long long served = 0, refused = 0;
    double took = 0;
    if (pipe != nullptr) {
      if (std::fscanf(pipe, "%lld %lld %lf", &served, &refused, &took) == 3) {
        flood_served_ += served;
        flood_refused_ += refused;
        flood_seconds_ += took;
      }
      pclose(pipe);
    }
    return seconds;
  }

  CoordinatorProcess& process() { return *coordinator_; }
  int failed() const { return failed_; }
  double served_rate() const { return static_cast<double>(flood_served_) / flood_seconds_; }
  double refused_rate() const { return static_cast<double>(flood_refused_) / flood_seconds_; }

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

  // Calls at the fixed pace, whatever the answers take: a call that is late counts from when it was
  // due.
  std::vector<double> Pace(int caller) {
    const auto stub = v1::Coordinator::NewStub(ConnectTo(coordinator_->address(), client_));
    const auto step = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(1 / setting_.pace));
    std::vector<double> seconds;
    v1::ListJobsResponse first;
    (void)stub->ListJobs(As(honest_).get(), {}, &first);  // connects
    const auto begin = Clock::now() + step * caller / setting_.callers;
    const int calls = static_cast<int>(setting_.flood.seconds * setting_.pace);
    for (int i = 0; i < calls; ++i) {
      const auto due = begin + step * i;
      std::this_thread::sleep_until(due);
      grpc::Status status;
      if (i % 2 == 0) {
        v1::ListJobsResponse listed;
        status = stub->ListJobs(As(honest_).get(), {}, &listed);
      } else {
        v1::SubmitJobRequest request;
        request.set_request_id(absl::StrCat("request-", caller, "-", ++requests_));
        request.set_spec_yaml(kSpec);
        request.set_dry_run(true);
        v1::SubmitJobResponse response;
        status = stub->SubmitJob(As(honest_).get(), request, &response);
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
  int64_t flood_served_ = 0, flood_refused_ = 0;
  double flood_seconds_ = 0;
};

absl::StatusOr<bool> Compare(const Setting& setting) {
  FloodedCoordinator flooded(setting);
  NIBBLE_RETURN_IF_ERROR(flooded.Start());
  std::printf(
      "%d honest callers with %g calls a second each; the flood: %d connections with %d calls in "
      "flight; both identities may make 200 calls a second; %d rounds of %g s alone and %g s "
      "beside the flood\n",
      setting.callers, setting.pace, setting.flood.connections, setting.flood.calls, setting.rounds,
      setting.flood.seconds, setting.flood.seconds);
  (void)flooded.Measure();  // warm-up
  std::vector<double> alone, beside;
  const int64_t before = flooded.process().RssBytes();
  int64_t most = before;
  for (int round = 0; round < setting.rounds; ++round) {
    const std::vector<double> one = flooded.Measure();
    const std::vector<double> other = flooded.MeasureFlooded();
    most = std::max(most, flooded.process().RssBytes());
    std::printf("round %d: p99 %.2f ms alone, %.2f ms beside the flood\n", round + 1,
                Percentile(one, 99) * kMsPerSecond, Percentile(other, 99) * kMsPerSecond);
    alone.insert(alone.end(), one.begin(), one.end());
    beside.insert(beside.end(), other.begin(), other.end());
  }
  const double ratio = Percentile(beside, 99) / Percentile(alone, 99);
  const bool met = ratio <= 2 && flooded.failed() == 0;
  std::printf(
      "%zu calls alone: p50 %.2f ms, p99 %.2f ms; %zu beside: p50 %.2f ms, p99 %.2f ms; failed: "
      "%d\n"
      "flood: %.0f calls a second served, %.0f refused; coordinator: %.1f MiB before, at most "
      "%.1f\np99 beside the flood over p99 alone: %.2f   goal 2: %s\n",
      alone.size(), Percentile(alone, 50) * kMsPerSecond, Percentile(alone, 99) * kMsPerSecond,
      beside.size(), Percentile(beside, 50) * kMsPerSecond, Percentile(beside, 99) * kMsPerSecond,
      flooded.failed(), flooded.served_rate(), flooded.refused_rate(),
      static_cast<double>(before) / kMiB, static_cast<double>(most) / kMiB, ratio, Verdict(met));
  return met;
}

int Main(int argc, char** argv) {
  CommandLine app("Honest callers beside a flood from one identity");
  Setting setting;
  std::string files;
  FloodSetting& flood = setting.flood;
  app.Add("--directory", setting.directory, "directory of the store").ShowDefault();
  app.Add("--coordinator", setting.program, "path of nibble-coordinator").ShowDefault();
  app.Add("--rounds", setting.rounds, "pairs of phases").ShowDefault();
  app.Add("--callers", setting.callers, "honest callers, of one identity").ShowDefault();
  app.Add("--pace", setting.pace, "calls of each of them a second").ShowDefault();
  app.Add("--connections", flood.connections, "connections of the flood").ShowDefault();
  app.Add("--calls", flood.calls, "calls in flight on each of them").ShowDefault();
  app.Add("--seconds", flood.seconds, "duration of a phase").ShowDefault();
  const Command run = app.AddSubcommand("flood", "The flood, for this program");
  run.Add("--target", flood.target, "host:port").Required();
  run.Add("--token", flood.token, "its token").Required();
  run.Add("--files", files, "directory of the certificates").Required();
  run.Add("--connections", flood.connections, "connections").Required();
  run.Add("--calls", flood.calls, "calls in flight on each of them").Required();
  run.Add("--seconds", flood.seconds, "duration").Required();
  if (const std::optional<int> ended = app.Parse(argc, argv, /*usage_exit_code=*/2)) return *ended;
  if (run.Parsed()) {
    flood.files = {.certificate = files + "/client.pem",
                   .key = files + "/client-key.pem",
                   .authority = files + "/lab-ca.pem"};
    return Flood(flood);
  }
  const absl::StatusOr<bool> met = Compare(setting);
  if (!met.ok()) std::fprintf(stderr, "%s\n", met.status().ToString().c_str());
  return !met.ok() ? 1 : *met ? 0 : 3;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::Main(argc, argv); }
