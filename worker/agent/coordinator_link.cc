#include "worker/agent/coordinator_link.h"

#include <grpcpp/grpcpp.h>
#include <chrono>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/nibble/v1/worker_link.grpc.pb.h"
#include "worker/agent/gang_rules.h"
#include "worker/agent/peer_server.h"

namespace nibble {
namespace {

// These detect a connection that was cut silently.
constexpr int kKeepaliveMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
// A desired state contains the timeline, at most 2 MiB, of every gang here.
constexpr int kMaxDesiredBytes = 256 << 20;
constexpr int64_t kTriesPerLease = 4;

std::shared_ptr<grpc::Channel> OpenChannel(const CoordinatorLink::Options& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // Backoff sets the waits between tries; gRPC's own would add to them.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetMaxReceiveMessageSize(kMaxDesiredBytes);
  return grpc::CreateCustomChannel(
      options.target, ChannelCredentialsOf(options.security, PeerKind::kCoordinator), arguments);
}

constexpr size_t kMaxErrorBytes = 1500;

std::string KeyOf(const v1::CheckpointRef& ref, int32_t rank) {
  return absl::StrCat(ref.job(), "/", ref.step(), "/", ref.attempt(), "/", rank);
}

}  // namespace

struct CoordinatorLink::Stream {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ConnectRequest, v1::ConnectResponse>> calls;
};

CoordinatorLink::CoordinatorLink(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
}

CoordinatorLink::~CoordinatorLink() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
    if (stream_ != nullptr) stream_->context.TryCancel();
  }
  changed_.SignalAll();
  thread_.join();
}

void CoordinatorLink::ReportNow() {
  {
    const MutexLock lock(&mutex_);
    report_now_ = true;
  }
  changed_.SignalAll();
}

void CoordinatorLink::Run() {
  Backoff backoff(options_.backoff);
  while (true) {
    bool answered = false;
    const absl::Status status = RunStream(answered);
    if (answered) backoff.Reset();
    std::chrono::milliseconds wait = backoff.Next();
    {
      const MutexLock lock(&mutex_);
      if (stopping_) return;
      // A restarted coordinator waits one lease for its workers.
      if (lease_ms_ > 0)
        wait = std::min(wait, std::chrono::milliseconds(lease_ms_ / kTriesPerLease));
    }
    if (options_.lost) options_.lost(status, wait);
    const auto until = std::chrono::steady_clock::now() + wait;
    const MutexLock lock(&mutex_);
    while (!stopping_ && !changed_.WaitUntil(&mutex_, until)) {
    }
    if (stopping_) return;
  }
}

bool CoordinatorLink::AwaitBeat() {
  const auto until = std::chrono::steady_clock::now() + options_.beat;
  const MutexLock lock(&mutex_);
  while (!stopping_ && !report_now_ && !broken_ && !changed_.WaitUntil(&mutex_, until)) {
  }
  report_now_ = false;
  return !stopping_ && !broken_;
}

void CoordinatorLink::Read(Stream& stream, bool& answered) {
  v1::ConnectResponse response;
  while (stream.calls->Read(&response)) {
    answered = true;
    {
      const MutexLock lock(&mutex_);
      lease_ms_ = response.lease_ms();
    }
    options_.desired(response);
  }
  {
    const MutexLock lock(&mutex_);
    broken_ = true;
  }
  changed_.SignalAll();
}

v1::ConnectRequest CoordinatorLink::MakeReport(int64_t number) const {
  v1::ConnectRequest request = options_.report(number);
  request.set_number(number);
  return request;
}

absl::Status CoordinatorLink::RunStream(bool& answered) {
  // A new channel for each stream: an old one may be in its own reconnect backoff.
  const std::unique_ptr<v1::WorkerLink::Stub> stub = v1::WorkerLink::NewStub(OpenChannel(options_));
  Stream stream;
  const std::string& token = options_.security.token;
  if (!token.empty()) stream.context.AddMetadata("authorization", "Bearer " + token);
  {
    const MutexLock lock(&mutex_);
    if (stopping_) return absl::OkStatus();
    stream_ = &stream;
    broken_ = false;
  }
  stream.calls = stub->Connect(&stream.context);
  std::thread reader([this, &stream, &answered] { Read(stream, answered); });
  int64_t number = 0;
  bool writes = stream.calls->Write(MakeReport(++number));
  while (writes && AwaitBeat()) writes = stream.calls->Write(MakeReport(++number));
  // The stream has ended, or the destructor has cancelled it.
  reader.join();
  {
    const MutexLock lock(&mutex_);
    stream_ = nullptr;
  }
  return FromGrpc(stream.calls->Finish());
}

void DamageReports::Found(const v1::CheckpointRef& ref, int32_t rank, const std::string& holder,
                          const absl::Status& damage) {
  {
    const MutexLock lock(&mutex_);
    const std::string key = KeyOf(ref, rank);
    found_.insert(key);
    const auto [at, is_new] = waiting_.try_emplace({key, holder});
    if (!is_new) return;
    v1::DamagedShard& shard = at->second.shard;
    *shard.mutable_ref() = ref;
    shard.set_rank(rank);
    shard.set_holder(holder);
    // File names may contain any bytes; a message is UTF-8.
    shard.set_detail(
        Printable(std::string(damage.message().substr(0, kMaxErrorBytes)), kMaxErrorBytes));
  }
  if (changed_) changed_();
}

bool DamageReports::AnyOf(const v1::CheckpointRef& ref, int32_t rank) const {
  const MutexLock lock(&mutex_);
  return found_.contains(KeyOf(ref, rank));
}

std::vector<v1::DamagedShard> DamageReports::Report(int64_t number, bool ordered) {
  const MutexLock lock(&mutex_);
  std::vector<v1::DamagedShard> report;
  for (auto& [key, waiting] : waiting_) {
    if (number == 1) waiting.first_report = 0;
    if (report.size() == kMostInAReport) continue;
    if (waiting.first_report == 0 && ordered) waiting.first_report = number;
    report.push_back(waiting.shard);
  }
  return report;
}

void DamageReports::Answered(int64_t number) {
  const MutexLock lock(&mutex_);
  std::erase_if(waiting_, [number](const auto& entry) {
    return entry.second.first_report > 0 && entry.second.first_report <= number;
  });
}

bool ShardListSchedule::IsDue(int64_t number, const std::vector<v1::ShardReport>& shards) {
  v1::ConnectRequest request;
  for (const v1::ShardReport& shard : shards) *request.add_shards() = shard;
  std::string bytes = request.SerializeAsString();
  if (number > 1 && number < listed_in_ + kEvery && listed_ == bytes) return false;
  listed_ = std::move(bytes);
  listed_in_ = number;
  return true;
}

}  // namespace nibble
