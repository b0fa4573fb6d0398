#include "tests/cluster/job_watch.h"

#include "absl/synchronization/notification.h"
#include "client/remote/job_text.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"

namespace nibble {
namespace {

constexpr int kReconnectMs = 50;

}  // namespace

std::shared_ptr<grpc::Channel> QuickChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

absl::Status CoordinatorStub::CallMethod(const std::string& method,
                                         const google::protobuf::Message& request,
                                         google::protobuf::Message& response,
                                         const CallOptions& options) const {
  grpc::ClientContext context;
  context.set_deadline(options.deadline);
  context.set_wait_for_ready(options.waits_for_ready);
  grpc::TemplatedGenericStub<google::protobuf::Message, google::protobuf::Message> stub(channel_);
  absl::Status result;
  absl::Notification answered;
  stub.UnaryCall(&context, std::string("/") + v1::Coordinator::service_full_name() + "/" + method,
                 {}, &request, &response, [&](const grpc::Status& status) {
                   result = absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                                         status.error_message());
                   answered.Notify();
                 });
  answered.WaitForNotification();
  return result;
}

JobWatch::JobWatch(const std::string& address)
    : channel_(QuickChannel(address)), thread_([this] { Follow(); }) {}

JobWatch::~JobWatch() {
  {
    MutexLock lock(&mutex_);
    end_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }
  thread_.join();
}

void JobWatch::Follow() {
  const auto stub = v1::Coordinator::NewStub(channel_);
  v1::WatchJobsRequest request;
  request.set_with_samples(true);
  while (true) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    {
      MutexLock lock(&mutex_);
      if (end_) return;
      call_ = &context;
    }
    const auto stream = stub->WatchJobs(&context, request);
    v1::WatchJobsResponse message;
    while (stream->Read(&message)) {
      request.set_resume_token(message.resume_token());
      MutexLock lock(&mutex_);
      if (message.has_job()) seen_[message.job().id()].job = message.job();
      if (message.has_event()) {
        seen_[message.event().job()].events[message.event().number()] = message.event();
      }
      if (message.has_sample()) {
        Seen& seen = seen_[message.sample().job()];
        seen.samples[message.sample().sample().step()] = message.sample().sample();
        ++seen.times_sampled[message.sample().sample().step()];
      }
      changed_.SignalAll();
    }
    const grpc::Status status = stream->Finish();
    // The history since the token no longer exists: start from the current state.
    if (status.error_code() == grpc::StatusCode::OUT_OF_RANGE) request.clear_resume_token();
    MutexLock lock(&mutex_);
    call_ = nullptr;
  }
}

bool JobWatch::Await(const std::string& job, const std::function<bool(const Seen&)>& holds,
                     std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  MutexLock lock(&mutex_);
  const auto is_there = [&] {
    mutex_.AssertHeld();
    const auto at = seen_.find(job);
    return at != seen_.end() && holds(at->second);
  };
  while (!is_there()) {
    if (changed_.WaitUntil(&mutex_, deadline)) return is_there();
  }
  return true;
}

bool JobWatch::AwaitState(const std::string& job, v1::JobState state,
                          std::chrono::milliseconds patience) {
  bool there = false;
  // A finished job changes no more.
  (void)Await(
      job,
      [&](const Seen& seen) {
        there = seen.job.state() == state;
        return there || IsOver(seen.job.state());
      },
      patience);
  return there;
}

bool JobWatch::AwaitStep(const std::string& job, int64_t step, std::chrono::milliseconds patience) {
  bool made = false;
  (void)Await(
      job,
      [&](const Seen& seen) {
        made = !seen.samples.empty() && seen.samples.rbegin()->first >= step;
        return made || IsOver(seen.job.state());
      },
      patience);
  return made;
}

JobWatch::Seen JobWatch::Of(const std::string& job) const {
  MutexLock lock(&mutex_);
  const auto at = seen_.find(job);
  return at == seen_.end() ? Seen() : at->second;
}

}  // namespace nibble
