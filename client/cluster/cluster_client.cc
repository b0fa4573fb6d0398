#include "client/cluster/cluster_client.h"

#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"

namespace nibble {
namespace {

constexpr std::chrono::seconds kCallPatience(10);
constexpr int kReconnectMs = 100;

absl::Status Told(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

std::unique_ptr<grpc::ClientContext> Context(std::chrono::milliseconds patience) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + patience);
  return context;
}

std::shared_ptr<grpc::Channel> Dial(const std::string& address) {
  grpc::ChannelArguments arguments;
  // Find a coordinator that was just started without delay.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMs);
  // Otherwise channels of this process to the same address share their reconnect backoff.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

std::string RequestId(const std::string& what) {
  return absl::StrCat(what, "-", absl::ToUnixNanos(absl::Now()));
}

}  // namespace

struct ClusterClient::Connection {
  explicit Connection(const std::string& address)
      : channel(Dial(address)), stub(v1::Coordinator::NewStub(channel)) {}

  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::Coordinator::Stub> stub;
};

ClusterClient::ClusterClient(const std::string& address)
    : connection_(std::make_unique<Connection>(address)) {}

ClusterClient::~ClusterClient() = default;

bool ClusterClient::Serves(std::chrono::milliseconds patience) {
  const auto context = Context(patience);
  context->set_wait_for_ready(true);
  grpc::GenericStub stub(connection_->channel);
  // The HealthCheckRequest for the whole server is empty.
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> answered;
  stub.UnaryCall(context.get(), "/grpc.health.v1.Health/Check", {}, &request, &response,
                 [&answered](grpc::Status status) { answered.set_value(std::move(status)); });
  if (!answered.get_future().get().ok()) return false;
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return false;
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  // HealthCheckResponse {status: SERVING}.
  return bytes == std::string("\x08\x01");
}

absl::StatusOr<std::vector<v1::Worker>> ClusterClient::Workers() {
  std::vector<v1::Worker> workers;
  v1::ListWorkersRequest request;
  do {
    v1::ListWorkersResponse response;
    const grpc::Status status =
        connection_->stub->ListWorkers(Context(kCallPatience).get(), request, &response);
    if (!status.ok()) return Told(status);
    workers.insert(workers.end(), response.workers().begin(), response.workers().end());
    request.mutable_page()->set_token(response.next_token());
  } while (!request.page().token().empty());
  return workers;
}

absl::StatusOr<std::map<v1::JobState, int64_t>> ClusterClient::JobsByState() {
  std::map<v1::JobState, int64_t> jobs;
  v1::ListJobsRequest request;
  request.mutable_page()->set_size(1000);
  do {
    v1::ListJobsResponse response;
    const grpc::Status status =
        connection_->stub->ListJobs(Context(kCallPatience).get(), request, &response);
    if (!status.ok()) return Told(status);
    for (const v1::Job& job : response.jobs()) ++jobs[job.state()];
    request.mutable_page()->set_token(response.next_token());
  } while (!request.page().token().empty());
  return jobs;
}

absl::Status ClusterClient::Drain(const std::string& worker, const std::string& reason) {
  v1::DrainWorkerRequest request;
  request.set_request_id(RequestId("drain"));
  request.set_worker(worker);
  request.set_reason(reason);
  v1::DrainWorkerResponse response;
  return Told(connection_->stub->DrainWorker(Context(kCallPatience).get(), request, &response));
}

absl::Status ClusterClient::Uncordon(const std::string& worker, const std::string& reason) {
  v1::UncordonWorkerRequest request;
  request.set_request_id(RequestId("uncordon"));
  request.set_worker(worker);
  request.set_reason(reason);
  v1::UncordonWorkerResponse response;
  return Told(connection_->stub->UncordonWorker(Context(kCallPatience).get(), request, &response));
}

}  // namespace nibble
