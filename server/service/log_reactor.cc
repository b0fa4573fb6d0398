#include "server/service/log_reactor.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/identity/credentials.h"
#include "common/stall/stall_look.h"
#include "grpcpp/alarm.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/client_callback.h"
#include "grpcpp/support/server_callback.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "proto/nibble/v1/rank_log.grpc.pb.h"
#include "server/controller/controller.h"
#include "server/controller/reads.h"
#include "server/service/admission.h"
#include "server/service/reactor_gate.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

// Reads one rank's lines from its worker's daemon (nibble.v1.RankLogs): passes on each response,
// and reads the next one only on request. Deletes itself when its call is over. Callbacks run in
// gRPC's threads, one at a time.
class RankReader : private grpc::ClientReadReactor<v1::ReadRankLogResponse> {
 public:
  // A response is in response(). If it is to be read later, Keep must be called in this callback,
  // and then Next or Drop: otherwise the call may end, and the reader with it, in between.
  using Received = std::function<void()>;
  using Done = std::function<void(const grpc::Status&)>;

  RankReader(OpenStreams streams, const std::shared_ptr<grpc::Channel>& channel,
             v1::ReadRankLogRequest request, Received received, Done done)
      : counted_(std::move(streams), channel),
        stub_(v1::RankLogs::NewStub(channel)),
        request_(std::move(request)),
        received_(std::move(received)),
        done_(std::move(done)) {}

  void Start() {
    stub_->async()->ReadRankLog(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  v1::ReadRankLogResponse& response() { return response_; }
  void Keep() { AddHold(); }
  void Next() {
    response_.Clear();
    StartRead(&response_);
    RemoveHold();
  }
  void Drop() { RemoveHold(); }
  // From any thread, until `done` is called.
  void Cancel() { context_.TryCancel(); }

 private:
  ~RankReader() override = default;
  void OnReadDone(bool ok) override {
    if (ok) received_();
  }
  void OnDone(const grpc::Status& status) override {
    done_(status);
    delete this;
  }

  struct Counted {
    Counted(OpenStreams all, std::shared_ptr<grpc::Channel> used)
        : streams(std::move(all)), channel(std::move(used)) {
      streams->AddReader();
    }
    ~Counted() { streams->RemoveReader(std::move(channel)); }
    const OpenStreams streams;
    std::shared_ptr<grpc::Channel> channel;
  };

  Counted counted_;  // destroyed after the stub and the context, which hold the channel, too
  const std::unique_ptr<v1::RankLogs::Stub> stub_;
  const v1::ReadRankLogRequest request_;
  const Received received_;
  const Done done_;
  grpc::ClientContext context_;
  v1::ReadRankLogResponse response_;
};

class LogReactor : public GatedStream<LogReactor, grpc::ServerWriteReactor<v1::StreamLogsResponse>,
                                      v1::StreamLogsResponse> {
 public:
  LogReactor(grpc::CallbackServerContext& context, Controller& controller, const LogLimits& limits,
             OpenStreams open, std::shared_ptr<const Credentials> to_workers,
             const v1::StreamLogsRequest& request, const absl::Status& refused,
             std::shared_ptr<OpenCall> place)
      : GatedStream(context, limits.reason_ms),
        controller_(controller),
        limits_(limits),
        open_(std::move(open)),
        to_workers_(std::move(to_workers)),
        request_(request),
        place_(std::move(place)) {
    const std::shared_ptr<OpenCall> kept = place_;
    const auto gate = gate_;
    gate->Reach(&LogReactor::Begin, refused);
    // This reactor may be gone by now.
    kept->EndWith([gate](const absl::Status& why) { gate->Reach(&LogReactor::End, why); });
  }

 private:
  friend class GatedStream;

  // One rank that is being read.
  struct Reading {
    LogSource source;
    RankReader* reader = nullptr;
    bool ready = false;      // its response is kept, and waits to be written
    bool written = false;    // some of its lines were written
    bool cancelled = false;  // because it was silent
    SteadyTime requested;    // when the pending response was
  };

  void Begin(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (!open_->Enter(limits_.streams) && status.ok()) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("log streams: more are open than allowed: ", limits_.streams));
    }
    if (status.ok()) status = CheckBounds(request_);
    if (status.ok()) status = CheckRange("tail_lines", request_.tail_lines(), 0, kMaxTailLines);
    if (status.ok()) status = CheckRange("trace_steps", request_.trace_steps(), 0, kMaxTraceSteps);
    if (status.ok() && traces() && request_.follow()) {
      status = absl::InvalidArgumentError("follow: a trace ends by itself");
    }
    if (!status.ok()) return End(status);
    const auto first = Find({request_.job(), request_.attempt(), false, rank()});
    if (first.ok() && traces() && first->over) {
      return End(absl::FailedPreconditionError(
          absl::StrCat("trace_steps: ", request_.job(), " has no running ranks")));
    }
    if (first.ok()) {
      BeginAttempt(*first, request_.tail_lines());
    } else if (!absl::IsNotFound(first.status()) || !request_.follow() || request_.attempt() > 0 ||
               !controller_.Read(DescribeRequest()).ok()) {
      return End(first.status());
    }  // else the first attempt has not started yet
    if (!ended()) ScheduleCheck();
    Pump();
  }

  bool traces() const { return request_.trace_steps() > 0; }
  // The event log is rank 0's.
  int32_t rank() const {
    if (traces()) return -1;
    return request_.events() ? 0 : request_.rank();
  }

  absl::StatusOr<LogAttempt> Find(const LogQuery& query) const { return controller_.Read(query); }

  v1::DescribeJobRequest DescribeRequest() const {
    v1::DescribeJobRequest request;
    request.set_job(request_.job());
    return request;
  }

  void BeginAttempt(const LogAttempt& attempt, int32_t tail_lines)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    attempt_ = attempt;
    tail_lines_ = tail_lines;
    at_once_ = (request_.follow() || traces()) && !attempt.over;
    problem_ = absl::OkStatus();
    broken_.reset();
    to_read_.clear();
    for (const LogSource& source : attempt.sources) {
      // One reader gets the trace of all ranks of its worker.
      const bool same = traces() && std::any_of(to_read_.begin(), to_read_.end(),
                                                [&source](const LogSource& other) {
                                                  return other.worker == source.worker;
                                                });
      if (!same) to_read_.push_back(source);
    }
    if (at_once_ && std::ssize(to_read_) > limits_.followed_ranks) {
      End(absl::ResourceExhaustedError(absl::StrCat("rank: the attempt has ", to_read_.size(),
                                                    " ranks; at most ", limits_.followed_ranks,
                                                    " can be followed at once; name one rank")));
    }
  }

  // Starts readers: of all ranks at once, or of the next one when there is none.
  void StartReaders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    while (!to_read_.empty() && (at_once_ || readings_.empty())) {
      const LogSource source = std::move(to_read_.front());
      to_read_.pop_front();
      if (source.address.empty()) {
        NoteProblem(absl::UnavailableError(absl::StrCat(
            "worker ", source.worker, " is not registered; its lines are readable when it is")));
        continue;
      }
      v1::ReadRankLogRequest request;
      request.set_job(request_.job());
      request.set_attempt(attempt_.number);
      request.set_rank(source.rank);
      request.set_tail_lines(tail_lines_);
      request.set_follow(at_once_);
      request.set_events(request_.events());
      request.set_trace_steps(request_.trace_steps());
      const int64_t number = ++last_reading_;
      auto* const reader = new RankReader(
          open_, ChannelTo(source.address), std::move(request),
          [gate = gate_, number] { gate->Reach(&LogReactor::HandleResponse, number); },
          [gate = gate_, number](const grpc::Status& status) {
            gate->Reach(&LogReactor::HandleEnd, number, status);
          });
      readings_[number] = {.source = source, .reader = reader, .requested = Now()};
      reader->Start();
    }
  }

  const std::shared_ptr<grpc::Channel>& ChannelTo(const std::string& address)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    std::shared_ptr<grpc::Channel>& channel = channels_[address];
    if (channel == nullptr) {
      channel = grpc::CreateChannel(address, to_workers_->ForChannelTo(PeerKind::kWorker));
    }
    return channel;
  }

  std::chrono::milliseconds Silence() const {
    return std::chrono::milliseconds(limits_.silence_ms);
  }
  static SteadyTime Now() { return std::chrono::steady_clock::now(); }

  void NoteProblem(absl::Status problem) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (problem_.ok()) problem_ = std::move(problem);
  }

  void HandleResponse(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    const auto found = readings_.find(number);
    if (found == readings_.end()) return;
    found->second.reader->Keep();
    found->second.ready = true;
    ready_.push_back(number);
    Pump();
  }

  void HandleEnd(int64_t number, const grpc::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    const auto found = readings_.find(number);
    if (found == readings_.end()) return;
    const Reading reading = std::move(found->second);
    readings_.erase(found);
    if (!status.ok() && traces() && status.error_code() != grpc::StatusCode::UNAVAILABLE) {
      NoteProblem(absl::Status(
          static_cast<absl::StatusCode>(status.error_code()),
          absl::StrCat("worker ", reading.source.worker, ": ", status.error_message())));
    } else if (!status.ok() && at_once_ && !reading.written && !traces()) {
      // The rank may not have started, or its worker may come back.
      retry_.push_back(reading.source);
    } else if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
      NoteProblem(absl::NotFoundError(
          absl::StrCat("worker ", reading.source.worker, ": ", status.error_message())));
    } else if (!status.ok()) {
      if (at_once_ && problem_.ok()) broken_ = Now();
      NoteProblem(absl::UnavailableError(absl::StrCat(
          "worker ", reading.source.worker, " (", reading.source.address,
          ") does not answer: ", reading.cancelled ? "it is silent" : status.error_message())));
    }
    Pump();
  }

  // Writes the responses that arrived, requests more, and ends the stream if there are none.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (ended()) return;
    StartReaders();
    while (MayWrite() && !ready_.empty()) {
      const int64_t number = ready_.front();
      ready_.pop_front();
      const auto found = readings_.find(number);
      if (found == readings_.end()) continue;
      WriteResponse(found->second);
    }
    if (MayWrite() && readings_.empty() && to_read_.empty() && !request_.follow()) End(problem_);
  }

  void WriteResponse(Reading& reading) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    v1::StreamLogsResponse message;
    v1::ReadRankLogResponse& response = reading.reader->response();
    message.set_rank(reading.source.rank);
    message.set_attempt(attempt_.number);
    if (response.dropped_bytes() > 0 && tail_lines_ == 0) {
      message.add_lines(
          absl::StrCat("(the first ", response.dropped_bytes(), " bytes are no longer kept)"));
    }
    for (std::string& line : *response.mutable_lines()) message.add_lines(std::move(line));
    reading.ready = false;
    reading.requested = Now();
    reading.reader->Next();
    if (message.lines_size() == 0) return;
    reading.written = true;
    Write(std::move(message));
  }

  void ScheduleCheck() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(std::chrono::system_clock::now() + std::chrono::milliseconds(limits_.look_ms),
                [gate = gate_](bool ok) {
                  if (ok) gate->Reach(&LogReactor::CheckJob);
                });
  }

  // Runs periodically: gives up silent workers, and continues with the job's next attempt.
  void CheckJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (ended()) return;
    if (const int64_t for_ms = StalledMs(controller_.clock().SteadyMs());
        for_ms > limits_.stall_ms) {
      StopReaders();
      return End(ReadsTooSlowly("the log stream", for_ms, limits_.stall_ms,
                                "ask again, with tail_lines for the newest ones"));
    }
    if (attempt_.number > 0) {
      const auto now = Find({request_.job(), attempt_.number, false, rank()});
      // An attempt that is no longer kept is over.
      attempt_.over = !now.ok() || now->over;
      EndSilent();
      // While the attempt is running, lines written after a broken connection cannot be read.
      if (broken_ && !attempt_.over && Now() - *broken_ > Silence()) End(problem_);
    }
    if (ended()) return;
    if (at_once_ && !attempt_.over) Retry();
    if (request_.follow() && readings_.empty() && to_read_.empty() && MayWrite())
      BeginNextAttempt();
    if (ended()) return;
    ScheduleCheck();
    Pump();
  }

  void EndSilent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (at_once_ && !attempt_.over) return;  // running ranks may write nothing for long
    for (auto& [number, reading] : readings_) {
      if (reading.ready || Now() - reading.requested < Silence()) continue;
      reading.cancelled = true;
      reading.reader->Cancel();
    }
  }

  void Retry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    to_read_.insert(to_read_.end(), retry_.begin(), retry_.end());
    retry_.clear();
  }

  // Called when every rank of the followed attempt was read: continues with the next attempt.
  void BeginNextAttempt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (attempt_.number > 0 && !attempt_.over) return;
    if (!retry_.empty()) {  // once more after the end of the attempt
      at_once_ = false;
      Retry();
      return;
    }
    const auto next = Find({request_.job(), attempt_.number + 1, true, rank()});
    if (next.ok()) return BeginAttempt(*next, 0);
    if (!absl::IsNotFound(next.status())) return End(next.status());
    const auto job = controller_.Read(DescribeRequest());
    if (!job.ok()) return End(job.status());
    if (job->job().finished_unix_ms() > 0) End(problem_);
  }

  void StopReaders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    for (auto& [number, reading] : readings_) {
      reading.reader->Cancel();
      if (reading.ready) reading.reader->Drop();
    }
    readings_.clear();
  }

  void CancelAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    StopReaders();
    if (alarm_ != nullptr) alarm_->Cancel();
  }

  void Leave() {
    gate_->Reach(&LogReactor::CancelAll);
    open_->Leave();
  }

  static constexpr int32_t kMaxTailLines = 1'000'000;
  static constexpr int32_t kMaxTraceSteps = 100;

  Controller& controller_;
  const LogLimits limits_;
  const OpenStreams open_;
  const std::shared_ptr<const Credentials> to_workers_;
  const v1::StreamLogsRequest request_;
  const std::shared_ptr<OpenCall> place_;
  LogAttempt attempt_ ABSL_GUARDED_BY(gate_->mutex);  // number 0: none yet
  int32_t tail_lines_ ABSL_GUARDED_BY(gate_->mutex) = 0;
  bool at_once_ ABSL_GUARDED_BY(gate_->mutex) = false;  // all ranks are read at once
  absl::Status problem_ ABSL_GUARDED_BY(gate_->mutex);  // the first error of a rank
  // When the connection to a followed rank broke.
  std::optional<SteadyTime> broken_ ABSL_GUARDED_BY(gate_->mutex);
  std::deque<LogSource> to_read_ ABSL_GUARDED_BY(gate_->mutex);
  std::vector<LogSource> retry_ ABSL_GUARDED_BY(gate_->mutex);  // could not be read yet
  std::map<int64_t, Reading> readings_ ABSL_GUARDED_BY(gate_->mutex);
  std::deque<int64_t> ready_ ABSL_GUARDED_BY(gate_->mutex);
  int64_t last_reading_ ABSL_GUARDED_BY(gate_->mutex) = 0;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_ ABSL_GUARDED_BY(gate_->mutex);
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(gate_->mutex);
};

}  // namespace

void LogStreams::AddReader() {
  const MutexLock lock(&mutex_);
  ++readers_;
}

void LogStreams::RemoveReader(std::shared_ptr<grpc::Channel> channel) {
  {
    const MutexLock lock(&mutex_);
    last_.swap(channel);
  }
  channel.reset();  // another one's
  const MutexLock lock(&mutex_);
  if (--readers_ == 0) changed_.SignalAll();
}

void LogStreams::AwaitReaders() {
  std::shared_ptr<grpc::Channel> last;
  MutexLock lock(&mutex_);
  while (readers_ > 0) changed_.Wait(&mutex_);
  last.swap(last_);
}

grpc::ServerWriteReactor<v1::StreamLogsResponse>* StreamRankLogs(
    grpc::CallbackServerContext& context, Controller& controller, const LogLimits& limits,
    const OpenStreams& open, std::shared_ptr<const Credentials> to_workers,
    const v1::StreamLogsRequest& request, const absl::Status& refused,
    std::shared_ptr<OpenCall> place) {
  return new LogReactor(context, controller, limits, open, std::move(to_workers), request, refused,
                        std::move(place));
}

}  // namespace nibble
