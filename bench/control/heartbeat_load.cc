#include "bench/control/heartbeat_load.h"

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "grpcpp/grpcpp.h"
#include "proto/nibble/v1/worker_link.grpc.pb.h"

namespace nibble::bench {

std::string JobSpecText(int ranks) {
  return absl::StrCat(
      "name: bench\nmodel: tiny-hybrid\nrecipe: nvfp4\n"
      "data: {train: [corpus.txt], sequence: 128}\n"
      "training: {steps: 1000, batch: 16}\n"
      "optimizer: {warmup_steps: 10, decay_fraction: 0.2}\n"
      "resources: {ranks: ",
      ranks, "}\n");
}

v1::ConnectRequest HeartbeatOf(int worker) {
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

namespace {

using SteadyClock = std::chrono::steady_clock;

// One worker's stream. The benchmark owns it, and destroys it after Finish.
class Worker : public grpc::ClientBidiReactor<v1::ConnectRequest, v1::ConnectResponse> {
 public:
  Worker(v1::WorkerLink::Stub& stub, int number) : report_(HeartbeatOf(number)) {
    stub.async()->Connect(&context_, this);
    StartRead(&desired_);
    StartCall();
  }
  // Skips the report if the previous one has no answer yet.
  void Beat() {
    {
      MutexLock lock(&mutex_);
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
    MutexLock lock(&mutex_);
    while (!done_) ended_.Wait(&mutex_);
  }
  std::vector<double> TakeSeconds() {
    MutexLock lock(&mutex_);
    return std::exchange(seconds_, {});
  }
  int64_t late() {
    MutexLock lock(&mutex_);
    return late_;
  }
  // The error with which the stream ended before Finish; empty: none.
  std::string ended_with() {
    MutexLock lock(&mutex_);
    return ended_with_;
  }
  bool answered() {
    MutexLock lock(&mutex_);
    return answers_ > 0;
  }

 private:
  void OnWriteDone(bool) override {
    MutexLock lock(&mutex_);
    writing_ = false;
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      MutexLock lock(&mutex_);
      ++answers_;
      if (sent_) {
        seconds_.push_back(std::chrono::duration<double>(SteadyClock::now() - *sent_).count());
        sent_.reset();
      }
    }
    StartRead(&desired_);
  }
  void OnDone(const grpc::Status& status) override {
    MutexLock lock(&mutex_);
    if (status.error_code() != grpc::StatusCode::CANCELLED) {
      ended_with_ = status.error_message();
    }
    done_ = true;
    ended_.SignalAll();
  }

  grpc::ClientContext context_;
  v1::ConnectRequest report_;
  v1::ConnectResponse desired_;
  Mutex mutex_;
  CondVar ended_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<SteadyClock::time_point> sent_ ABSL_GUARDED_BY(mutex_);
  std::vector<double> seconds_ ABSL_GUARDED_BY(mutex_);
  int64_t late_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t answers_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string ended_with_ ABSL_GUARDED_BY(mutex_);
};

// Each worker reports once a second; the reports of all processes are spread evenly over it.
void Pace(const std::vector<std::unique_ptr<Worker>>& all, const HeartbeatLoad& load,
          SteadyClock::time_point start, double seconds) {
  const auto beats = static_cast<int64_t>(seconds * static_cast<double>(all.size()));
  for (int64_t beat = 0; beat < beats; ++beat) {
    const int64_t turn = beat * load.of + load.share;
    std::this_thread::sleep_until(start +
                                  std::chrono::nanoseconds(turn * 1'000'000'000 / load.workers));
    all[static_cast<size_t>(beat) % all.size()]->Beat();
  }
}

}  // namespace

HeartbeatAnswers GenerateHeartbeats(const HeartbeatLoad& load) {
  std::vector<std::unique_ptr<v1::WorkerLink::Stub>> stubs;
  for (int c = 0; c < load.connections; ++c) {
    grpc::ChannelArguments own;  // a connection of its own for each stub
    own.SetInt("nibble.connection", c);
    stubs.push_back(v1::WorkerLink::NewStub(
        grpc::CreateCustomChannel(load.target, grpc::InsecureChannelCredentials(), own)));
  }
  std::vector<std::unique_ptr<Worker>> all;
  for (int w = load.share; w < load.workers; w += load.of) {
    all.push_back(std::make_unique<Worker>(*stubs[all.size() % stubs.size()], w));
  }
  const auto now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  const double ahead = static_cast<double>(load.begin_unix_ms - now_ms) / 1e3;
  const auto begin = SteadyClock::now() + std::chrono::milliseconds(load.begin_unix_ms - now_ms);
  Pace(all, load, SteadyClock::now(), ahead - 0.5);
  std::this_thread::sleep_until(begin);
  for (const auto& worker : all) worker->TakeSeconds();
  Pace(all, load, begin, load.seconds);
  HeartbeatAnswers answers;
  for (const auto& worker : all) {
    const std::vector<double> own = worker->TakeSeconds();
    answers.seconds.insert(answers.seconds.end(), own.begin(), own.end());
    answers.late += worker->late();
    answers.answered += worker->answered();
    if (worker->ended_with().empty()) continue;
    ++answers.ended;
    answers.why = worker->ended_with();
  }
  for (const auto& worker : all) worker->Finish();
  return answers;
}

void WriteAnswers(const HeartbeatAnswers& answers, FILE* out) {
  for (const double seconds : answers.seconds) std::fprintf(out, "%.9f\n", seconds);
  std::fprintf(out, "end %lld %lld %lld %s\n", static_cast<long long>(answers.late),
               static_cast<long long>(answers.answered), static_cast<long long>(answers.ended),
               answers.why.c_str());
}

bool ReadAnswers(FILE* in, HeartbeatAnswers& answers) {
  double seconds = 0;
  while (std::fscanf(in, "%lf", &seconds) == 1) answers.seconds.push_back(seconds);
  long long late = 0, answered = 0, ended = 0;
  char why[256] = "";
  const int read = std::fscanf(in, "end %lld %lld %lld %255[^\n]", &late, &answered, &ended, why);
  answers.late += late;
  answers.answered += answered;
  answers.ended += ended;
  if (ended > 0) answers.why = why;
  return read >= 3;
}

}  // namespace nibble::bench
