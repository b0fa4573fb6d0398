#include "client/remote/coordinator_client.h"

#include <netdb.h>
#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/shell/command_line.h"
#include "common/identity/credentials.h"
#include "common/listen_address.h"
#include "common/status_macros.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "proto/grpc/health/v1/health.pb.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"

namespace nibble {
namespace {

using google::protobuf::Message;

constexpr size_t kMaxAuthorBytes = 200;
constexpr int kMaxMessageBytes = 64 << 20;

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::string> Checked(const std::string& source, const std::string& address) {
  NIBBLE_RETURN_IF_ERROR(CheckServerAddress(source, address));
  return address;
}

std::shared_ptr<grpc::Channel> Connect(const std::string& server, const ClientAccess& access) {
  grpc::ChannelArguments arguments;
  // A coordinator restarts within seconds; gRPC's default back-off grows to two minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // The proxy of the environment is for the web.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Otherwise channels of this process to one address share their reconnect back-off.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  const std::shared_ptr<grpc::ChannelCredentials> credentials =
      access.credentials == nullptr ? grpc::InsecureChannelCredentials()
                                    : access.credentials->ForChannelTo(PeerKind::kCoordinator);
  return grpc::CreateCustomChannel(server, credentials, arguments);
}

// Marks the statuses that a coordinator sent: its errors have details, those of gRPC's own, of
// connections and deadlines, have none.
constexpr char kAnswered[] = "nibble.v1/answered";

absl::Status StatusOf(const grpc::Status& status) {
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (!status.error_details().empty()) result.SetPayload(kAnswered, absl::Cord());
  return result;
}

template <class Response>
class GrpcStream : public ResponseStream<Response> {
 public:
  using Reader = grpc::ClientReaderInterface<Response>;

  // `begin` starts the call in the context.
  template <class Begin>
  GrpcStream(const CoordinatorClient& client, const Begin& begin)
      : context_(client), reader_(begin(&context_.grpc())) {}

  bool Read(Response& response) override { return reader_->Read(&response); }
  absl::Status Finish() override { return StatusOf(reader_->Finish()); }
  void Cancel() override { context_.Cancel(); }

 private:
  CallContext context_;
  const std::unique_ptr<Reader> reader_;
};

// Whether the server is on this machine and refuses connections.
bool NobodyListensHere(const std::string& server) {
  const absl::StatusOr<ListenAddress> address = ParseListenAddress("server", server);
  if (!address.ok() || !address->loopback) return false;
  const std::string host = address->host == "localhost" ? "127.0.0.1" : address->host;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(address->port).c_str(), &hints, &found) != 0) {
    return false;
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  const int probe = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return false;
  const bool refused =
      connect(probe, found->ai_addr, found->ai_addrlen) != 0 && errno == ECONNREFUSED;
  close(probe);
  return refused;
}

// The effective user in the user database; empty texts if it is not there.
struct UserEntry {
  std::string name, directory;
};

UserEntry OwnEntry() {
  std::array<char, 4096> room;
  passwd entry = {};
  passwd* found = nullptr;
  if (getpwuid_r(geteuid(), &entry, room.data(), room.size(), &found) != 0 || found == nullptr) {
    return {};
  }
  return {found->pw_name, found->pw_dir};
}

}  // namespace

std::string DefaultClusterDirectory() {
  const std::string nibble_home = Variable("NIBBLE_HOME");
  if (!nibble_home.empty()) return nibble_home + "/cluster";
  std::string home = Variable("HOME");
  // Without HOME, as in some services and containers, the root of the file system would be used.
  if (home.empty()) home = OwnEntry().directory;
  return home + "/.nibble/cluster";
}

Backoff RetryBackoff() {
  return Backoff({.first = std::chrono::milliseconds(100),
                  .most = std::chrono::milliseconds(2000),
                  .seed = std::random_device()()});
}

std::string ClusterAddressPath(const std::string& directory) { return directory + "/address"; }

absl::StatusOr<std::string> ReadClusterAddress(const std::string& directory) {
  const std::string path = ClusterAddressPath(directory);
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const absl::string_view address = absl::StripAsciiWhitespace(line);
  if (!address.empty()) return std::string(address);
  return absl::NotFoundError(absl::StrCat("no cluster is up: ", path,
                                          " does not exist; run 'nibble cluster up' to start one"));
}

absl::StatusOr<std::string> FindServerAddress(const std::string& flag) {
  if (!flag.empty()) return Checked("--server", flag);
  const std::string variable = Variable("NIBBLE_SERVER");
  if (!variable.empty()) return Checked("NIBBLE_SERVER", variable);
  const std::string directory = DefaultClusterDirectory();
  const std::string path = ClusterAddressPath(directory);
  std::error_code none;
  if (!std::filesystem::exists(path, none)) return kDefaultServer;
  return Checked(path, ReadClusterAddress(directory).value_or(""));
}

std::string AuthorName() {
  std::string name = OwnEntry().name;
  std::erase_if(name, [](char c) { return c < ' ' || c > '~'; });
  if (name.empty()) name = absl::StrCat("uid-", geteuid());
  return name.substr(0, kMaxAuthorBytes);
}

std::string CoordinatorClient::NewRequestId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(random(), absl::kZeroPad8));
  return id;
}

CallContext::CallContext(const CoordinatorClient& client, absl::Duration timeout)
    : context_(std::make_unique<grpc::ClientContext>()) {
  context_->AddMetadata("nibble-author", client.options().author);
  const std::string& token = client.options().access.token;
  if (!token.empty()) context_->AddMetadata("authorization", "Bearer " + token);
  // gRPC takes the deadline on the wall clock and keeps it on the monotonic clock.
  if (timeout != absl::InfiniteDuration()) {
    context_->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  }
}

CallContext::~CallContext() = default;

void CallContext::Cancel() { context_->TryCancel(); }

struct CoordinatorClient::Connection {
  Connection(const std::string& server, const ClientAccess& access)
      : channel(Connect(server, access)),
        unary(channel),
        streams(v1::Coordinator::NewStub(channel)),
        prefix(absl::StrCat("/", v1::Coordinator::service_full_name(), "/")) {}

  const std::shared_ptr<grpc::Channel> channel;
  grpc::TemplatedGenericStub<Message, Message> unary;
  const std::unique_ptr<v1::Coordinator::Stub> streams;
  const std::string prefix;  // of a method's name
};

CoordinatorClient::CoordinatorClient(ClientOptions options)
    : options_(std::move(options)),
      connection_(std::make_unique<Connection>(options_.server, options_.access)) {}

CoordinatorClient::~CoordinatorClient() = default;

std::unique_ptr<ResponseStream<v1::WatchJobsResponse>> CoordinatorClient::WatchJobs(
    const v1::WatchJobsRequest& request) const {
  return std::make_unique<GrpcStream<v1::WatchJobsResponse>>(
      *this, [&](grpc::ClientContext* context) {
        return connection_->streams->WatchJobs(context, request);
      });
}

std::unique_ptr<ResponseStream<v1::StreamLogsResponse>> CoordinatorClient::StreamLogs(
    const v1::StreamLogsRequest& request) const {
  return std::make_unique<GrpcStream<v1::StreamLogsResponse>>(
      *this, [&](grpc::ClientContext* context) {
        return connection_->streams->StreamLogs(context, request);
      });
}

bool CoordinatorClient::Serves(absl::Duration patience) const {
  CallContext context(*this, patience);
  context.grpc().set_wait_for_ready(true);
  grpc::health::v1::HealthCheckResponse response;
  // An empty request asks for the whole server.
  return Attempt("/grpc.health.v1.Health/Check", grpc::health::v1::HealthCheckRequest(), response,
                 context)
             .ok() &&
         response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

absl::Status CoordinatorClient::Explain(const absl::Status& status) const {
  // A coordinator that answers says itself what is missing, such as a worker.
  if (status.ok() || status.GetPayload(kAnswered).has_value()) return status;
  if (absl::IsUnavailable(status)) {
    return absl::UnavailableError(
        absl::StrCat("no answer from ", options_.server, " (", status.message(),
                     "); name another coordinator with --server or NIBBLE_SERVER"));
  }
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(absl::StrCat("no answer from ", options_.server, " in ",
                                                    absl::FormatDuration(options_.timeout),
                                                    "; wait longer with --timeout"));
  }
  return status;
}

absl::Status CoordinatorClient::Attempt(const char* method, const Message& request,
                                        Message& response, CallContext& context) const {
  absl::Status result;
  absl::Notification answered;
  // Methods of another service than Coordinator are whole paths.
  const std::string path = method[0] == '/' ? method : connection_->prefix + method;
  connection_->unary.UnaryCall(&context.grpc(), path, {}, &request, &response,
                               [&](const grpc::Status& status) {
                                 result = StatusOf(status);
                                 answered.Notify();
                               });
  answered.WaitForNotification();
  return result;
}

absl::Status CoordinatorClient::Repeat(const char* method, const Message& request,
                                       Message& response) const {
  const absl::Duration deadline = SteadyNow() + options_.timeout;
  Backoff backoff = RetryBackoff();
  bool reported = false;
  while (true) {
    CallContext context(*this, deadline - SteadyNow());
    const absl::Status status = Attempt(method, request, response, context);
    if (!absl::IsUnavailable(status)) reached_ = true;
    if (!reached_ && options_.fails_at_once && NobodyListensHere(options_.server)) {
      return absl::UnavailableError(absl::StrCat(
          "nothing listens at ", options_.server,
          ": run 'nibble cluster up' to start a cluster here, name another with --server or "
          "NIBBLE_SERVER, or wait for one that is starting with --timeout"));
    }
    const absl::Duration pause = absl::FromChrono(backoff.Next());
    if (!absl::IsUnavailable(status) || SteadyNow() + pause >= deadline) return Explain(status);
    if (!std::exchange(reported, true) && options_.say) {
      const bool answered = status.GetPayload(kAnswered).has_value();
      options_.say(absl::StrCat(
          answered ? std::string(status.message()) : options_.server + " does not answer",
          "; retrying for ", absl::FormatDuration(options_.timeout)));
    }
    absl::SleepFor(pause);
  }
}

}  // namespace nibble
