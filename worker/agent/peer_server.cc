#include "worker/agent/peer_server.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "common/errno_error.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "proto/nibble/v1/rank_log.grpc.pb.h"
#include "proto/nibble/v1/shard_store.grpc.pb.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/gang_rules.h"
#include "worker/agent/own_paths.h"
#include "worker/agent/rank_log.h"
#include "worker/agent/stream_readers.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/shard_reader.h"

namespace nibble {
namespace {

// For all calls together, before they are read from their sockets.
constexpr size_t kCallBytes = size_t{64} << 20;
// Requests are small; large data is streamed.
constexpr int kMaxRequestBytes = 1 << 20;
// A connection is probed after this time of silence, and closed after this time without an answer.
constexpr int kProbeMs = 30'000;
constexpr int kProbeAnswerMs = 20'000;

}  // namespace

std::string HostOf(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return host;
}

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const LinkSecurity& security,
                                                               PeerKind to) {
  if (security.credentials == nullptr) return grpc::InsecureChannelCredentials();
  return security.credentials->ForChannelTo(to);
}

absl::Status CheckPeerCall(const PeerName& peer, absl::string_view call) {
  const bool of_workers = absl::StartsWith(call, "/nibble.v1.ShardStore/") ||
                          absl::StartsWith(call, "/nibble.v1.GangMeeting/");
  const bool of_coordinator = absl::StartsWith(call, "/nibble.v1.RankLogs/");
  if ((of_workers && peer.kind == PeerKind::kWorker) ||
      (of_coordinator && peer.kind == PeerKind::kCoordinator)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(call, ": the caller is ", peer.ToString(),
                                                  "; allowed: ",
                                                  of_workers       ? "workers"
                                                  : of_coordinator ? "the coordinator"
                                                                   : "nobody"));
}

namespace {

// Passes on a refusal a second, with the number of those in between.
class RefusalLog {
 public:
  explicit RefusalLog(std::function<void(const std::string&)> write) : write_(std::move(write)) {}

  void Add(const absl::Status& refusal) {
    if (write_ == nullptr) return;
    int64_t silent = 0;
    {
      const MutexLock lock(&mutex_);
      const auto now = std::chrono::steady_clock::now();
      if (written_ && now - *written_ < std::chrono::seconds(1)) {
        ++silent_;
        return;
      }
      written_ = now;
      silent = std::exchange(silent_, 0);
    }
    write_(absl::StrCat("refused: ", refusal.message(),
                        silent > 0 ? absl::StrCat(" (and ", silent, " more before)") : ""));
  }

 private:
  const std::function<void(const std::string&)> write_;
  Mutex mutex_;
  std::optional<std::chrono::steady_clock::time_point> written_ ABSL_GUARDED_BY(mutex_);
  int64_t silent_ ABSL_GUARDED_BY(mutex_) = 0;
};

using grpc::experimental::InterceptionHookPoints;

// The status of every call of the port, whichever service answers it.
class StatusOfCall final : public grpc::experimental::Interceptor {
 public:
  StatusOfCall(const char* call, std::shared_ptr<OwnPaths> paths)
      : call_(call), paths_(std::move(paths)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE)) {
      unreadable_ = batch->GetRecvMessage() == nullptr;
    }
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = batch->GetSendStatus();
      // gRPC's own answer is INTERNAL, without a word.
      if (unreadable_ && status.error_code() == grpc::StatusCode::INTERNAL) {
        batch->ModifySendStatus(ToGrpc(absl::InvalidArgumentError(
            absl::StrCat(call_, ": the request is not a message of this call"))));
      } else if (!status.ok() && paths_ != nullptr) {
        batch->ModifySendStatus({status.error_code(), paths_->Hide(status.error_message())});
      }
    }
    batch->Proceed();
  }

 private:
  const char* const call_;
  const std::shared_ptr<OwnPaths> paths_;  // null: texts are sent as they are
  bool unreadable_ = false;
};

class StatusesOfCalls final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit StatusesOfCalls(std::shared_ptr<OwnPaths> paths) : paths_(std::move(paths)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* call) override {
    return new StatusOfCall(call->method(), paths_);
  }

 private:
  const std::shared_ptr<OwnPaths> paths_;
};

}  // namespace

void DeletePeerService::operator()(grpc::Service* service) const { delete service; }

absl::StatusOr<std::unique_ptr<PeerServer>> PeerServer::Start(
    const std::string& address, const LinkSecurity& security, std::vector<PeerService> services,
    std::function<void(const std::string&)> refused, std::shared_ptr<OwnPaths> paths) {
  const auto log = std::make_shared<RefusalLog>(std::move(refused));
  const std::shared_ptr<grpc::ServerCredentials> credentials =
      security.credentials == nullptr
          ? grpc::InsecureServerCredentials()
          : security.credentials->ForServer([log](const PeerName& caller, absl::string_view call) {
              const absl::Status status = CheckPeerCall(caller, call);
              if (!status.ok()) log->Add(status);
              return status;
            });
  std::unique_ptr<PeerServer> peer(new PeerServer);
  peer->services_ = std::move(services);
  int port = 0;
  grpc::ServerBuilder builder;
  // Two daemons on one port would each receive half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kProbeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kProbeAnswerMs);
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("peers").Resize(kCallBytes));
  builder.AddListeningPort(address, credentials, &port);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> statuses;
  statuses.push_back(std::make_unique<StatusesOfCalls>(std::move(paths)));
  builder.experimental().SetInterceptorCreators(std::move(statuses));
  for (const PeerService& service : peer->services_) {
    builder.RegisterService(service.get());
  }
  peer->server_ = builder.BuildAndStart();
  if (peer->server_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("address: cannot listen at ", address));
  }
  peer->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  return peer;
}

PeerServer::PeerServer() = default;

PeerServer::~PeerServer() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

// --- Logs

namespace {

constexpr int64_t kReadBytes = 64 << 10;
constexpr size_t kResponseBytes = 256 << 10;
// Between two checks whether the reader is still connected.
constexpr std::chrono::milliseconds kPoll(250);

// The offset at which the last `lines` lines begin.
absl::StatusOr<int64_t> TailBegin(const RankLog& log, int32_t lines) {
  int64_t until = log.end();
  int64_t wanted = lines;
  bool last_byte = true;
  while (until > log.begin()) {
    const int64_t from = std::max(log.begin(), until - kReadBytes);
    NIBBLE_ASSIGN_OR_RETURN(const RankLog::Piece piece, log.Read(from, until - from));
    if (piece.offset != from) return piece.offset;  // discarded meanwhile
    for (int64_t i = static_cast<int64_t>(piece.bytes.size()) - 1; i >= 0; --i) {
      const bool end_of_line = piece.bytes[static_cast<size_t>(i)] == '\n';
      // The newline at the very end begins no line.
      if (end_of_line && !last_byte && --wanted == 0) return from + i + 1;
      last_byte = false;
    }
    until = from;
  }
  return until;
}

struct LogWriter {
  grpc::ServerWriter<v1::ReadRankLogResponse>& stream;
  StreamReaders::Reading& reading;
};

// Splits a stream of bytes into lines and sends them in batches.
class LineSender {
 public:
  LineSender(LogWriter& writer, size_t most) : writer_(writer), most_(most) {}

  void SetDropped(int64_t bytes) { response_.set_dropped_bytes(bytes); }
  // False if the reader has disconnected.
  bool Add(absl::string_view bytes) {
    while (!bytes.empty()) {
      const size_t newline = bytes.find('\n');
      const size_t room = most_ - line_.size();
      const size_t take = std::min({newline, bytes.size(), room});
      line_.append(bytes.data(), take);
      bytes.remove_prefix(take);
      const bool ends = !bytes.empty() && bytes[0] == '\n';
      if (ends) bytes.remove_prefix(1);
      if ((ends || line_.size() == most_) && !EndLine()) return false;
    }
    return true;
  }
  bool EndLine() {
    bytes_ += line_.size() + 1;
    response_.add_lines(Utf8(std::exchange(line_, std::string())));
    return bytes_ < kResponseBytes || Flush();
  }
  bool Flush() {
    if (response_.lines().empty() && response_.dropped_bytes() == 0) return true;
    bytes_ = 0;
    const bool sent = writer_.reading.Write(writer_.stream, response_);
    response_.Clear();
    return sent;
  }
  bool has_part() const { return !line_.empty(); }

 private:
  LogWriter& writer_;
  const size_t most_;  // bytes of a line
  v1::ReadRankLogResponse response_;
  std::string line_;  // that has no end yet
  size_t bytes_ = 0;  // in response_
};

absl::Status Send(const RankLog& log, const v1::ReadRankLogRequest& request,
                  const grpc::ServerContext& context, LogWriter& writer) {
  LineSender sender(writer, kMaxLineBytes);
  int64_t at = 0;
  if (request.tail_lines() > 0) {
    NIBBLE_ASSIGN_OR_RETURN(at, TailBegin(log, request.tail_lines()));
  } else {
    at = log.begin();
    sender.SetDropped(at);
  }
  const absl::Status disconnected = absl::CancelledError("the reader has disconnected");
  while (!context.IsCancelled()) {
    const bool ended = log.ended();
    NIBBLE_ASSIGN_OR_RETURN(const RankLog::Piece piece, log.Read(at, kReadBytes));
    if (piece.offset > at) {
      const std::string skipped =
          absl::StrCat("[", piece.offset - at, " bytes are no longer kept]\n");
      if ((sender.has_part() && !sender.EndLine()) || !sender.Add(skipped)) return disconnected;
    }
    if (!sender.Add(piece.bytes)) return disconnected;
    at = piece.offset + static_cast<int64_t>(piece.bytes.size());
    if (!piece.bytes.empty()) continue;
    // Everything written so far was read.
    if (ended || !request.follow()) {
      if (sender.has_part() && !sender.EndLine()) return disconnected;
      return sender.Flush() ? absl::OkStatus() : disconnected;
    }
    if (!sender.Flush()) return disconnected;
    (void)log.AwaitBeyond(at, kPoll);
  }
  return disconnected;
}

// The event log, whole lines only. It grows while it is read.
absl::Status Send(const EventFile& events, const v1::ReadRankLogRequest& request,
                  const grpc::ServerContext& context, LogWriter& writer) {
  if (request.follow() && !events.started) {
    return absl::NotFoundError("rank 0 of the attempt has not started on this worker");
  }
  const int file = open(events.path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) {
    if (errno == ENOENT) return absl::NotFoundError("the job has no event log on this worker");
    return ErrnoError(errno, "event log: opening", events.path);
  }
  const absl::Cleanup closes = [file] { close(file); };
  LineSender sender(writer, kMaxEventBytes);
  std::string bytes(kReadBytes, '\0');
  const absl::Status disconnected = absl::CancelledError("the reader has disconnected");
  while (!context.IsCancelled()) {
    const bool ended = events.ended();
    const ssize_t got = read(file, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, "event log: reading", events.path);
    if (!sender.Add({bytes.data(), static_cast<size_t>(got)})) return disconnected;
    if (got > 0) continue;
    if (!sender.Flush()) return disconnected;
    if (ended || !request.follow()) return absl::OkStatus();
    std::this_thread::sleep_for(kPoll);
  }
  return disconnected;
}

class LogService final : public v1::RankLogs::Service {
 public:
  LogService(FindRankLog find, FindEventFile find_events, TraceRanks trace,
             const ReaderLimits& limits)
      : find_(std::move(find)),
        find_events_(std::move(find_events)),
        trace_(std::move(trace)),
        readers_("logs", absl::StatusCode::kResourceExhausted, limits) {}

  grpc::Status ReadRankLog(grpc::ServerContext* context, const v1::ReadRankLogRequest* request,
                           grpc::ServerWriter<v1::ReadRankLogResponse>* writer) override {
    if (request->rank() < 0 || request->attempt() < 1 || request->tail_lines() < 0 ||
        request->trace_steps() < 0) {
      return ToGrpc(absl::InvalidArgumentError(
          absl::StrCat("rank ", request->rank(), " is below 0, attempt ", request->attempt(),
                       " below 1, or tail_lines ", request->tail_lines(), " or trace_steps ",
                       request->trace_steps(), " below 0")));
    }
    const auto reading = readers_.Begin(*context);
    if (!reading.ok()) return ToGrpc(reading.status());
    LogWriter to = {.stream = *writer, .reading = **reading};
    return ToGrpc(Find(*request, *context, to));
  }

 private:
  absl::Status Find(const v1::ReadRankLogRequest& request, const grpc::ServerContext& context,
                    LogWriter& writer) const {
    if (request.trace_steps() > 0) return Trace(request, context, writer);
    if (request.events()) {
      NIBBLE_ASSIGN_OR_RETURN(const EventFile events,
                              find_events_(request.job(), request.attempt()));
      return Send(events, request, context, writer);
    }
    NIBBLE_ASSIGN_OR_RETURN(const std::shared_ptr<const RankLog> log,
                            find_(request.job(), request.attempt(), request.rank()));
    return Send(*log, request, context, writer);
  }

  const FindRankLog find_;
  absl::Status Trace(const v1::ReadRankLogRequest& request, const grpc::ServerContext& context,
                     LogWriter& writer) const {
    if (request.trace_steps() > kMaxTraceSteps) {
      return absl::InvalidArgumentError(
          absl::StrCat("trace_steps: ", request.trace_steps(), " is above ", kMaxTraceSteps));
    }
    NIBBLE_ASSIGN_OR_RETURN(const std::string path,
                            trace_(request.job(), request.attempt(), request.trace_steps(),
                                   [&context] { return context.IsCancelled(); }));
    const absl::Cleanup removes = [&path] { (void)unlink(path.c_str()); };
    v1::ReadRankLogRequest whole = request;
    whole.set_follow(false);
    return Send(EventFile{.path = path, .started = true, .ended = [] { return true; }}, whole,
                context, writer);
  }

  const FindEventFile find_events_;
  const TraceRanks trace_;
  StreamReaders readers_;
};

}  // namespace

PeerService MakeLogService(FindRankLog find, FindEventFile find_events, TraceRanks trace,
                           const ReaderLimits& limits) {
  return PeerService(
      new LogService(std::move(find), std::move(find_events), std::move(trace), limits));
}

// --- Shards

namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;

class ShardService final : public v1::ShardStore::Service {
 public:
  ShardService(const CheckpointRegistry& registry, std::string worker, const ReaderLimits& limits)
      : registry_(registry),
        worker_(std::move(worker)),
        // The code with which a reader tries other workers, and this one again.
        readers_("shards", absl::StatusCode::kUnavailable, limits) {}

  grpc::Status DescribeShard(grpc::ServerContext* context, const v1::DescribeShardRequest* request,
                             v1::DescribeShardResponse* response) override {
    SayWho(*context);
    const auto shard = Open(request->shard());
    if (!shard.ok()) return ToGrpc(shard.status());
    const auto header = registry_.HeaderOf(request->shard().checkpoint());
    if (!header.ok()) return ToGrpc(header.status());
    response->set_manifest(ShardManifestBytes((*shard)->manifest()));
    response->set_manifest_crc32c(Crc32c(response->manifest()));
    response->set_bytes((*shard)->manifest().bytes());
    response->set_header(EncodeHeader(*header));
    response->set_header_crc32c(Crc32c(response->header()));
    return grpc::Status::OK;
  }

  grpc::Status ReadShard(grpc::ServerContext* context, const v1::ReadShardRequest* request,
                         grpc::ServerWriter<v1::ReadShardResponse>* writer) override {
    SayWho(*context);
    const auto reading = readers_.Begin(*context);
    if (!reading.ok()) return ToGrpc(reading.status());
    const auto shard = Open(request->shard());
    if (!shard.ok()) return ToGrpc(shard.status());
    const int64_t all = (*shard)->manifest().bytes();
    const int64_t from = request->offset_bytes();
    const int64_t length = request->length_bytes();
    if (from < 0 || from > all || length < 0 || length > all - from) {
      return ToGrpc(absl::InvalidArgumentError(absl::StrCat(
          "offset_bytes ", from, " and length_bytes ", length, " are outside ", all, " bytes")));
    }
    return ToGrpc(Send(**shard, from, length == 0 ? all : from + length, *writer, **reading));
  }

 private:
  void SayWho(grpc::ServerContext& context) const {
    if (!worker_.empty()) context.AddInitialMetadata(kShardHolderKey, worker_);
  }

  // A shard that is no longer registered is not served, even if its files still exist.
  absl::StatusOr<std::unique_ptr<ShardReader>> Open(const v1::ShardRef& ref) const {
    NIBBLE_RETURN_IF_ERROR(registry_.CrcOf(ref.checkpoint(), ref.rank()).status());
    return registry_.OpenShard(ref.checkpoint(), ref.rank());
  }

  static absl::Status Send(const ShardReader& shard, int64_t from, int64_t until,
                           grpc::ServerWriter<v1::ReadShardResponse>& writer,
                           StreamReaders::Reading& reading) {
    for (int64_t at = from; at < until;) {
      const int64_t next = std::min(until, at + kPieceBytes);
      std::string bytes(static_cast<size_t>(next - at), '\0');
      NIBBLE_RETURN_IF_ERROR(
          shard.Read(at, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())));
      v1::ReadShardResponse piece;
      piece.set_offset_bytes(at);
      piece.set_crc32c(Crc32c(bytes));
      piece.set_data(std::move(bytes));
      if (!reading.Write(writer, piece)) return absl::CancelledError("the reader has disconnected");
      at = next;
    }
    return absl::OkStatus();
  }

  const CheckpointRegistry& registry_;
  const std::string worker_;
  StreamReaders readers_;
};

}  // namespace

PeerService MakeShardService(const CheckpointRegistry& registry, std::string worker,
                             const ReaderLimits& limits) {
  return PeerService(new ShardService(registry, std::move(worker), limits));
}

}  // namespace nibble
