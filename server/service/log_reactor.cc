#include "server/service/log_reactor.h"

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
#include "grpcpp/alarm.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/client_callback.h"
#include "grpcpp/support/server_callback.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "proto/nibble/v1/rank_log.grpc.pb.h"
#include "server/controller/controller.h"
#include "server/controller/reads.h"
#include "server/service/reactor_gate.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

// Reads one rank's lines from its worker's daemon (nibble.v1.RankLogs): passes on each response,
// and reads the next one only when asked. Deletes itself when its call is over. Next and Cancel may
// be called from any thread until `done` was called; callbacks run in gRPC's threads, one at a
// time.
class RankReader : private grpc::ClientReadReactor<v1::ReadRankLogResponse> {
 public:
  // A response is in response(); the next one is read after Next.
  using Came = std::function<void()>;
  using Done = std::function<void(const grpc::Status&)>;

  RankReader(const std::shared_ptr<grpc::Channel>& channel, v1::ReadRankLogRequest request,
             Came came, Done done)
      : stub_(v1::RankLogs::NewStub(channel)),
        request_(std::move(request)),
        came_(std::move(came)),
        done_(std::move(done)) {}

  void Start() {
    stub_->async()->ReadRankLog(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  v1::ReadRankLogResponse& response() { return response_; }
  void Next() {
    response_.Clear();
    StartRead(&response_);
  }
  void Cancel() { context_.TryCancel(); }

 private:
  ~RankReader() override = default;
  void OnReadDone(bool ok) override {
    if (ok) came_();
  }
  void OnDone(const grpc::Status& status) override {
    done_(status);
    delete this;
  }

  const std::unique_ptr<v1::RankLogs::Stub> stub_;
  const v1::ReadRankLogRequest request_;
  const Came came_;
  const Done done_;
  grpc::ClientContext context_;
  v1::ReadRankLogResponse response_;
};

class LogReactor : public GatedStream<LogReactor, grpc::ServerWriteReactor<v1::StreamLogsResponse>,
                                      v1::StreamLogsResponse> {
 public:
  LogReactor(Controller& controller, const LogLimits& limits, OpenStreams open,
             const v1::StreamLogsRequest& request, const absl::Status& refused)
      : controller_(controller), limits_(limits), open_(std::move(open)), request_(request) {
    gate()->Reach([&refused](LogReactor& self) { self.Begin(refused); });
  }

 private:
  friend class GatedStream;

  // One rank that is being read.
  struct Reading {
    LogSource source;
    RankReader* reader = nullptr;
    bool ready = false;      // its response waits to be written
    bool told = false;       // some of its lines were written
    bool cancelled = false;  // because it was silent
    SteadyTime asked;        // when the pending response was requested
  };

  // The methods below, except Leave, are called with the gate's lock held.

  void Begin(absl::Status status) {
    if (open_->fetch_add(1) >= limits_.streams && status.ok()) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("log streams: ", limits_.streams, " are open, as many as are allowed"));
    }
    if (status.ok()) status = CheckBounds(request_);
    if (status.ok()) status = CheckRange("tail_lines", request_.tail_lines(), 0, kMaxTailLines);
    if (!status.ok()) return End(status);
    const auto first = Find({request_.job(), request_.attempt(), false, request_.rank()});
    if (first.ok()) {
      Take(*first, request_.tail_lines());
    } else if (!absl::IsNotFound(first.status()) || !request_.follow() || request_.attempt() > 0 ||
               !controller_.Read(DescribeRequest()).ok()) {
      return End(first.status());
    }  // else the first attempt has not started yet
    if (!ended()) LookAgain();
    Pump();
  }

  absl::StatusOr<LogAttempt> Find(const LogQuery& query) const { return controller_.Read(query); }

  v1::DescribeJobRequest DescribeRequest() const {
    v1::DescribeJobRequest request;
    request.set_job(request_.job());
    return request;
  }

  void Take(const LogAttempt& attempt, int32_t tail_lines) {
    attempt_ = attempt;
    tail_lines_ = tail_lines;
    at_once_ = request_.follow() && !attempt.over;
    problem_ = absl::OkStatus();
    broken_.reset();
    to_read_.assign(attempt.sources.begin(), attempt.sources.end());
    if (at_once_ && std::ssize(to_read_) > limits_.followed_ranks) {
      End(absl::ResourceExhaustedError(absl::StrCat(
          "rank: ", to_read_.size(),
          " cannot be followed at once; allowed: ", limits_.followed_ranks, ", or name one")));
    }
  }

  void ReadOn() {
    while (!to_read_.empty() && (at_once_ || readings_.empty())) {
      const LogSource source = std::move(to_read_.front());
      to_read_.pop_front();
      if (source.address.empty()) {
        Note(absl::UnavailableError(absl::StrCat("worker ", source.worker, " is forgotten")));
        continue;
      }
      v1::ReadRankLogRequest request;
      request.set_job(request_.job());
      request.set_attempt(attempt_.number);
      request.set_rank(source.rank);
      request.set_tail_lines(tail_lines_);
      request.set_follow(at_once_);
      const int64_t number = ++last_reading_;
      auto* const reader = new RankReader(
          ChannelTo(source.address), std::move(request),
          [gate = gate(), number] {
            gate->Reach([number](LogReactor& self) { self.Came(number); });
          },
          [gate = gate(), number](const grpc::Status& status) {
            gate->Reach([&](LogReactor& self) { self.Over(number, status); });
          });
      readings_[number] = {.source = source, .reader = reader, .asked = Now()};
      reader->Start();
    }
  }

  const std::shared_ptr<grpc::Channel>& ChannelTo(const std::string& address) {
    std::shared_ptr<grpc::Channel>& channel = channels_[address];
    if (channel == nullptr) {
      channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    }
    return channel;
  }

  std::chrono::milliseconds Silence() const {
    return std::chrono::milliseconds(limits_.silence_ms);
  }
  static SteadyTime Now() { return std::chrono::steady_clock::now(); }

  void Note(absl::Status problem) {
    if (problem_.ok()) problem_ = std::move(problem);
  }

  void Came(int64_t number) {
    const auto found = readings_.find(number);
    if (found == readings_.end()) return;
    found->second.ready = true;
    ready_.push_back(number);
    Pump();
  }

  void Over(int64_t number, const grpc::Status& status) {
    const auto found = readings_.find(number);
    if (found == readings_.end()) return;
    const Reading reading = std::move(found->second);
    readings_.erase(found);
    if (!status.ok() && at_once_ && !reading.told) {
      // The rank may not have started, or its worker may come back.
      again_.push_back(reading.source);
    } else if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
      Note(absl::NotFoundError(
          absl::StrCat("worker ", reading.source.worker, ": ", status.error_message())));
    } else if (!status.ok()) {
      if (at_once_ && problem_.ok()) broken_ = Now();
      Note(absl::UnavailableError(absl::StrCat(
          "worker ", reading.source.worker, " (", reading.source.address,
          ") does not answer: ", reading.cancelled ? "it is silent" : status.error_message())));
    }
    Pump();
  }

  // Writes the responses that arrived, requests more, and ends the stream if there are none.
  void Pump() {
    if (ended()) return;
    ReadOn();
    while (MayWrite() && !ready_.empty()) {
      const int64_t number = ready_.front();
      ready_.pop_front();
      const auto found = readings_.find(number);
      if (found == readings_.end()) continue;
      Hand(found->second);
    }
    if (MayWrite() && readings_.empty() && to_read_.empty() && !request_.follow()) End(problem_);
  }

  void Hand(Reading& reading) {
    v1::StreamLogsResponse message;
    v1::ReadRankLogResponse& came = reading.reader->response();
    message.set_rank(reading.source.rank);
    message.set_attempt(attempt_.number);
    if (came.dropped_bytes() > 0 && tail_lines_ == 0) {
      message.add_lines(
          absl::StrCat("(the first ", came.dropped_bytes(), " bytes are no longer kept)"));
    }
    for (std::string& line : *came.mutable_lines()) message.add_lines(std::move(line));
    reading.ready = false;
    reading.asked = Now();
    reading.reader->Next();
    if (message.lines_size() == 0) return;
    reading.told = true;
    Write(std::move(message));
  }

  void LookAgain() {
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(std::chrono::system_clock::now() + std::chrono::milliseconds(limits_.look_ms),
                [gate = gate()](bool ok) {
                  if (ok) gate->Reach([](LogReactor& self) { self.Look(); });
                });
  }

  // Runs periodically: gives up silent workers, and continues with the job's next attempt.
  void Look() {
    if (ended()) return;
    if (attempt_.number > 0) {
      const auto now = Find({request_.job(), attempt_.number, false, request_.rank()});
      // An attempt that is no longer kept is over.
      attempt_.over = !now.ok() || now->over;
      EndSilent();
      // While the attempt is running, lines written after a broken connection cannot be read.
      if (broken_ && !attempt_.over && Now() - *broken_ > Silence()) End(problem_);
    }
    if (ended()) return;
    if (at_once_ && !attempt_.over) AskAgain();
    if (request_.follow() && readings_.empty() && to_read_.empty() && MayWrite()) GoOn();
    if (ended()) return;
    LookAgain();
    Pump();
  }

  void EndSilent() {
    if (at_once_ && !attempt_.over) return;  // running ranks may write nothing for long
    for (auto& [number, reading] : readings_) {
      if (reading.ready || Now() - reading.asked < Silence()) continue;
      reading.cancelled = true;
      reading.reader->Cancel();
    }
  }

  void AskAgain() {
    to_read_.insert(to_read_.end(), again_.begin(), again_.end());
    again_.clear();
  }

  // Called when every rank of the followed attempt was read: continues with the next attempt.
  void GoOn() {
    if (attempt_.number > 0 && !attempt_.over) return;
    if (!again_.empty()) {  // once more after the end of the attempt
      at_once_ = false;
      AskAgain();
      return;
    }
    const auto next = Find({request_.job(), attempt_.number + 1, true, request_.rank()});
    if (next.ok()) return Take(*next, 0);
    if (!absl::IsNotFound(next.status())) return End(next.status());
    const auto job = controller_.Read(DescribeRequest());
    if (!job.ok()) return End(job.status());
    if (job->job().finished_unix_ms() > 0) End(problem_);
  }

  void Leave() {
    gate()->Reach([](LogReactor& self) {
      for (auto& [number, reading] : self.readings_) reading.reader->Cancel();
      self.readings_.clear();
      if (self.alarm_ != nullptr) self.alarm_->Cancel();
    });
    open_->fetch_sub(1);
  }

  static constexpr int32_t kMaxTailLines = 1'000'000;

  Controller& controller_;
  const LogLimits limits_;
  const OpenStreams open_;
  const v1::StreamLogsRequest request_;
  // Guarded by the gate's lock.
  LogAttempt attempt_;  // number 0: none yet
  int32_t tail_lines_ = 0;
  bool at_once_ = false;
  absl::Status problem_;              // the first error of a rank
  std::optional<SteadyTime> broken_;  // when the connection to a followed rank broke
  std::deque<LogSource> to_read_;
  std::vector<LogSource> again_;  // could not be read yet
  std::map<int64_t, Reading> readings_;
  std::deque<int64_t> ready_;
  int64_t last_reading_ = 0;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_;
  std::unique_ptr<grpc::Alarm> alarm_;
};

}  // namespace

grpc::ServerWriteReactor<v1::StreamLogsResponse>* StreamRankLogs(
    Controller& controller, const LogLimits& limits, const OpenStreams& open,
    const v1::StreamLogsRequest& request, const absl::Status& refused) {
  return new LogReactor(controller, limits, open, request, refused);
}

}  // namespace nibble
