#include "worker/agent/gang_preparation.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/backoff.h"
#include "common/status_macros.h"
#include "proto/nibble/v1/gang_meeting.grpc.pb.h"
#include "worker/agent/peer_server.h"
#include "worker/link/trainer_exit.h"
#include "worker/trainer/comm/rendezvous.h"

namespace nibble {
namespace {

constexpr std::chrono::seconds kAskTime(5);
constexpr std::chrono::seconds kConnectTime(5);
constexpr std::chrono::milliseconds kLook(250);  // between two checks for cancellation
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

constexpr int64_t kShowBytes = int64_t{16} << 20;

}  // namespace

std::string MeetingPoints::AddressOf(const Meeting& meeting) const {
  return absl::StrCat(Rendezvous::kServedPrefix, host_, ":", meeting.server->port());
}

absl::StatusOr<std::string> MeetingPoints::Open(const std::string& job, int64_t attempt) {
  // Servers are started and stopped outside the lock, because both wait.
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<TcpStoreServer> server,
                          TcpStoreServer::Start(absl::StrCat(host_, ":0")));
  const MutexLock lock(&mutex_);
  Meeting& meeting = meetings_[job];
  if (meeting.attempt > attempt) return Newer(job, attempt, meeting.attempt);
  if (meeting.attempt < attempt) {
    meeting.attempt = attempt;
    std::swap(meeting.server, server);
  }
  return AddressOf(meeting);
}

void MeetingPoints::Close(const std::string& job, int64_t attempt) {
  std::unique_ptr<TcpStoreServer> server;
  const MutexLock lock(&mutex_);
  const auto at = meetings_.find(job);
  if (at == meetings_.end() || at->second.attempt != attempt) return;
  server = std::move(at->second.server);
  meetings_.erase(at);
}

absl::StatusOr<std::string> MeetingPoints::Find(const std::string& job, int64_t attempt) const {
  const MutexLock lock(&mutex_);
  const auto at = meetings_.find(job);
  if (at != meetings_.end() && at->second.attempt > attempt) {
    return Newer(job, attempt, at->second.attempt);
  }
  if (at == meetings_.end() || at->second.attempt < attempt) {
    return absl::UnavailableError(absl::StrCat("attempt ", attempt, " of ", job, " is not here"));
  }
  return AddressOf(at->second);
}

PeerService MakeMeetingService(const MeetingPoints& points) {
  return PeerService(new MeetingService(points));
}

absl::StatusOr<std::string> AskForMeeting(const v1::DesiredGang& gang, const LinkSecurity& security,
                                          Cancellation& cancellation) {
  if (gang.members().empty() || gang.members(0).first_rank() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("members: none of attempt ", gang.attempt(),
                                                   " of ", gang.job(), " has rank 0"));
  }
  const std::unique_ptr<v1::GangMeeting::Stub> stub = v1::GangMeeting::NewStub(grpc::CreateChannel(
      gang.members(0).address(), ChannelCredentialsOf(security, PeerKind::kWorker)));
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
    grpc::Status status;
    {
      const Cancellation::Scope scope(cancellation, [&context] { context.TryCancel(); });
      status = stub->GetMeeting(&context, request, &response);
    }
    if (status.ok()) return response.rendezvous();
    if (cancellation.cancelled()) return absl::CancelledError("cancelled");
    if (status.error_code() == grpc::StatusCode::ABORTED ||
        status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) {
      return FromGrpc(status);
    }
    if (!cancellation.Sleep(backoff.Next())) return absl::CancelledError("cancelled");
  }
}

absl::Status AwaitMembers(const std::string& rendezvous, const v1::DesiredGang& gang,
                          Cancellation& cancellation) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  absl::string_view address = rendezvous;
  if (!absl::ConsumePrefix(&address, Rendezvous::kServedPrefix)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rendezvous: '", rendezvous, "' does not begin with '", Rendezvous::kServedPrefix, "'"));
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<TcpStore> store,
                          TcpStore::Connect(std::string(address), now() + kConnectTime));
  absl::Status status =
      store->Set(MemberKey(gang, gang.first_rank()), "ready", now() + kConnectTime);
  if (!status.ok()) return status;
  for (const v1::GangMember& member : gang.members()) {
    do {
      if (cancellation.cancelled()) return absl::CancelledError("cancelled");
      status = store->Get(MemberKey(gang, member.first_rank()), now() + kLook).status();
    } while (absl::IsDeadlineExceeded(status));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

GangPreparation::GangPreparation(v1::DesiredGang gang, const GangHome& home)
    : gang_(std::move(gang)), home_(home) {
  if (gang_.has_resume()) {
    Update(gang_);
    lease_ = home_.registry->Keep(gang_.resume());
  }
  thread_ = std::thread([this] { Run(); });
}

GangPreparation::~GangPreparation() {
  cancellation_.Cancel();
  thread_.join();
}

void GangPreparation::Update(const v1::DesiredGang& gang) {
  const MutexLock lock(&mutex_);
  for (const v1::DesiredReplica& shard : gang.resume_shards()) shards_[shard.rank()] = shard;
}

std::optional<absl::StatusOr<std::string>> GangPreparation::result() const {
  const MutexLock lock(&mutex_);
  return result_;
}

std::string GangPreparation::progress() const {
  const MutexLock lock(&mutex_);
  return progress_;
}

void GangPreparation::SetProgress(const std::string& progress) {
  const MutexLock lock(&mutex_);
  progress_ = progress;
}

void GangPreparation::Run() {
  absl::StatusOr<std::string> result = PrepareAll();
  {
    const MutexLock lock(&mutex_);
    result_ = std::move(result);
  }
  if (home_.changed) home_.changed();
}

absl::StatusOr<std::string> GangPreparation::PrepareAll() {
  if (gang_.has_resume()) NIBBLE_RETURN_IF_ERROR(FetchCheckpoint());
  SetProgress("waits for the other workers of its gang");
  absl::StatusOr<std::string> rendezvous =
      gang_.first_rank() == 0 ? home_.meetings->Open(gang_.job(), gang_.attempt())
                              : AskForMeeting(gang_, home_.security, cancellation_);
  absl::Status met = rendezvous.status();
  if (met.ok()) met = AwaitMembers(*rendezvous, gang_, cancellation_);
  if (met.ok()) return rendezvous;
  // The worker of rank 0 serves the rendezvous, so its absence is a lost peer.
  return gang_.first_rank() == 0 ? met : WithExit(met, TrainerExit::kPeer);
}

absl::Status GangPreparation::CheckLocalShards() {
  const v1::CheckpointRef& resume = gang_.resume();
  for (const v1::DesiredReplica& shard : gang_.resume_shards()) {
    if (cancellation_.cancelled()) return absl::CancelledError("cancelled");
    const absl::StatusOr<uint32_t> crc = home_.registry->CrcOf(resume, shard.rank());
    if (!crc.ok()) continue;
    SetProgress(absl::StrCat("checks the local shard of rank ", shard.rank()));
    absl::Status good;
    if (*crc != shard.manifest_crc32c()) {
      good = absl::DataLossError("its manifest is not the one that the coordinator knows");
    } else {
      const auto reader = home_.registry->OpenShard(resume, shard.rank());
      int64_t chunks = 0;
      good = reader.ok() ? (*reader)->Verify(chunks) : reader.status();
    }
    if (good.ok()) continue;
    if (home_.log) {
      home_.log(absl::StrCat("the local shard of rank ", shard.rank(), " of ", resume.job(),
                             ", step ", resume.step(),
                             ", is damaged and discarded: ", std::string(good.message())));
    }
    discarded_.insert(shard.rank());
    home_.damage->Found(shard.ref(), shard.rank(), home_.worker, good);
    NIBBLE_RETURN_IF_ERROR(home_.registry->RemoveDamaged(resume, shard.rank()));
  }
  return absl::OkStatus();
}

absl::Status GangPreparation::FetchShard(int32_t rank) {
  const v1::CheckpointRef& resume = gang_.resume();
  Backoff backoff({.first = std::chrono::milliseconds(200),
                   .most = std::chrono::milliseconds(5000),
                   .seed = static_cast<uint64_t>(rank)});
  while (true) {
    v1::DesiredReplica shard;
    {
      const MutexLock lock(&mutex_);
      shard = shards_.at(rank);
    }
    const bool damaged = discarded_.contains(rank) || home_.damage->AnyOf(shard.ref(), rank);
    if (shard.sources().empty() && damaged) {
      return absl::DataLossError(absl::StrCat("the shard of rank ", rank, " of ", resume.job(),
                                              ", step ", resume.step(),
                                              ", is damaged, and no connected worker has an "
                                              "intact replica"));
    }
    int64_t received = 0;
    int64_t shown = 0;
    const auto show = [&] {
      SetProgress(absl::StrCat("fetches the shard of rank ", shard.rank(), ", one of ",
                               gang_.resume_shards_size(), ": ", received, " bytes so far"));
    };
    show();
    const absl::Status status =
        home_.fetcher->Fetch(shard, /*input=*/false, cancellation_, [&](int64_t bytes) {
          received += bytes;
          if (received - shown < kShowBytes) return;
          shown = received;
          show();
        });
    // A full disk, or a shard without an intact copy, does not recover by retrying.
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status) &&
        !absl::IsFailedPrecondition(status)) {
      return status;
    }
    SetProgress(absl::StrCat("cannot fetch yet: ", std::string(status.message())));
    if (home_.log) home_.log(absl::StrCat(gang_.job(), ": ", progress()));
    if (!cancellation_.Sleep(backoff.Next())) return absl::CancelledError("cancelled");
  }
}

absl::Status GangPreparation::FetchCheckpoint() {
  // The coordinator names only accepted checkpoints to resume from.
  home_.registry->Accept(gang_.resume());
  NIBBLE_RETURN_IF_ERROR(CheckLocalShards());
  for (const v1::DesiredReplica& shard : gang_.resume_shards()) {
    if (home_.registry->CrcOf(gang_.resume(), shard.rank()).ok()) continue;
    NIBBLE_RETURN_IF_ERROR(FetchShard(shard.rank()));
  }
  return home_.registry->MakeLoadable(gang_.resume());
}

}  // namespace nibble
