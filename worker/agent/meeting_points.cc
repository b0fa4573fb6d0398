#include "worker/agent/meeting_points.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/backoff.h"
#include "proto/nibble/v1/gang_meeting.grpc.pb.h"
#include "worker/agent/peer_server.h"
#include "worker/trainer/comm/rendezvous.h"
#include "worker/trainer/comm/tcp_store.h"

namespace nibble {
namespace {

constexpr std::chrono::seconds kAskTime(5);
constexpr std::chrono::seconds kConnectTime(5);
constexpr std::chrono::milliseconds kLook(250);  // between two looks at whether it is called off
constexpr size_t kMaxJobBytes = 128;

class MeetingService final : public v1::GangMeeting::Service {
 public:
  explicit MeetingService(const MeetingPoints& points) : points_(points) {}

  grpc::Status GetMeeting(grpc::ServerContext*, const v1::GetMeetingRequest* request,
                          v1::GetMeetingResponse* response) override {
    if (request->job().empty() || request->job().size() > kMaxJobBytes || request->attempt() < 1) {
      return ToGrpc(absl::InvalidArgumentError(
          absl::StrCat("job has ", request->job().size(), " bytes, not in [1, ", kMaxJobBytes,
                       "], or attempt ", request->attempt(), " is below 1")));
    }
    absl::StatusOr<std::string> found = points_.Find(request->job(), request->attempt());
    if (!found.ok()) return ToGrpc(found.status());
    response->set_rendezvous(*std::move(found));
    return grpc::Status::OK;
  }

 private:
  const MeetingPoints& points_;
};

absl::Status Newer(const std::string& job, int64_t attempt, int64_t newest) {
  return absl::AbortedError(absl::StrCat("attempt: ", attempt, " of ", job,
                                         " is over; the latest known here is ", newest));
}

std::string MemberKey(const v1::DesiredGang& gang, int32_t first_rank) {
  return absl::StrCat("workers/", gang.attempt(), "/", first_rank);
}

}  // namespace

std::string MeetingPoints::AddressOf(const Meeting& meeting) const {
  return absl::StrCat(Rendezvous::kServedPrefix, host_, ":", meeting.server->port());
}

absl::StatusOr<std::string> MeetingPoints::Open(const std::string& job, int64_t attempt) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto at = meetings_.find(job); at != meetings_.end()) {
    if (at->second.attempt > attempt) return Newer(job, attempt, at->second.attempt);
    if (at->second.attempt == attempt) return AddressOf(at->second);
  }
  absl::StatusOr<std::unique_ptr<TcpStoreServer>> server =
      TcpStoreServer::Start(absl::StrCat(host_, ":0"));
  if (!server.ok()) return server.status();
  Meeting& meeting = meetings_[job];
  meeting = {.attempt = attempt, .server = *std::move(server)};
  return AddressOf(meeting);
}

void MeetingPoints::Close(const std::string& job, int64_t attempt) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = meetings_.find(job);
  if (at != meetings_.end() && at->second.attempt == attempt) meetings_.erase(at);
}

absl::StatusOr<std::string> MeetingPoints::Find(const std::string& job, int64_t attempt) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = meetings_.find(job);
  if (at != meetings_.end() && at->second.attempt > attempt) {
    return Newer(job, attempt, at->second.attempt);
  }
  if (at == meetings_.end() || at->second.attempt < attempt) {
    return absl::UnavailableError(absl::StrCat("attempt ", attempt, " of ", job, " is not here"));
  }
  return AddressOf(at->second);
}

std::unique_ptr<grpc::Service> MakeMeetingService(const MeetingPoints& points) {
  return std::make_unique<MeetingService>(points);
}

absl::StatusOr<std::string> AskForMeeting(const v1::DesiredGang& gang, const LinkSecurity& security,
                                          Cancellation& cancellation) {
  if (gang.members().empty() || gang.members(0).first_rank() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("members: none of attempt ", gang.attempt(),
                                                   " of ", gang.job(), " has rank 0"));
  }
  const std::unique_ptr<v1::GangMeeting::Stub> stub = v1::GangMeeting::NewStub(
      grpc::CreateChannel(gang.members(0).address(), ChannelCredentialsOf(security)));
  v1::GetMeetingRequest request;
  request.set_job(gang.job());
  request.set_attempt(gang.attempt());
  Backoff backoff({.first = std::chrono::milliseconds(50),
                   .most = std::chrono::milliseconds(1000),
                   .seed = static_cast<uint64_t>(gang.first_rank())});
  while (true) {
    v1::GetMeetingResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kAskTime);
    cancellation.Attach(&context);
    const grpc::Status status = stub->GetMeeting(&context, request, &response);
    cancellation.Attach(nullptr);
    if (status.ok()) return response.rendezvous();
    if (cancellation.cancelled()) return absl::CancelledError("called off");
    if (status.error_code() == grpc::StatusCode::ABORTED ||
        status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) {
      return FromGrpc(status);
    }
    if (!cancellation.Sleep(backoff.Next())) return absl::CancelledError("called off");
  }
}

absl::Status AwaitMembers(const std::string& rendezvous, const v1::DesiredGang& gang,
                          Cancellation& cancellation) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const std::string address = rendezvous.substr(sizeof(Rendezvous::kServedPrefix) - 1);
  absl::StatusOr<std::unique_ptr<TcpStore>> store =
      TcpStore::Connect(address, now() + kConnectTime);
  if (!store.ok()) return store.status();
  absl::Status status =
      (*store)->Set(MemberKey(gang, gang.first_rank()), "ready", now() + kConnectTime);
  if (!status.ok()) return status;
  for (const v1::GangMember& member : gang.members()) {
    do {
      if (cancellation.cancelled()) return absl::CancelledError("called off");
      status = (*store)->Get(MemberKey(gang, member.first_rank()), now() + kLook).status();
    } while (absl::IsDeadlineExceeded(status));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace nibble
