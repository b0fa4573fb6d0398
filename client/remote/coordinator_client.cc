#include "client/remote/coordinator_client.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/remote/server_address.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace nibble {
namespace {

constexpr size_t kMaxAuthorBytes = 200;
constexpr int kMaxMessageBytes = 64 << 20;

std::unique_ptr<v1::Coordinator::Stub> Connect(const std::string& server) {
  grpc::ChannelArguments arguments;
  // A coordinator that restarts is back in a second or two; the library's own pauses grow to two
  // minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A proxy of the environment is for the web.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return v1::Coordinator::NewStub(
      grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments));
}

}  // namespace

std::string AuthorName() {
  std::array<char, 4096> room;
  passwd entry = {};
  passwd* found = nullptr;
  std::string name;
  if (getpwuid_r(geteuid(), &entry, room.data(), room.size(), &found) == 0 && found != nullptr) {
    name = found->pw_name;
  }
  std::erase_if(name, [](char c) { return c < ' ' || c > '~'; });
  if (name.empty()) name = absl::StrCat("uid-", geteuid());
  return name.substr(0, kMaxAuthorBytes);
}

std::string NewRequestId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(random(), absl::kZeroPad8));
  return id;
}

CoordinatorClient::CoordinatorClient(ClientOptions options)
    : options_(std::move(options)), stub_(Connect(options_.server)) {}

std::unique_ptr<grpc::ClientContext> CoordinatorClient::NewContext() const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->AddMetadata("nibble-author", options_.author);
  return context;
}

absl::Status CoordinatorClient::Told(const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  const std::string& text = status.error_message();
  if (code == absl::StatusCode::kUnavailable) {
    return absl::UnavailableError(
        absl::StrCat("no answer from ", options_.server, " (", text,
                     "); --server or NIBBLE_SERVER names another coordinator"));
  }
  if (code == absl::StatusCode::kDeadlineExceeded) {
    return absl::DeadlineExceededError(absl::StrCat("no answer from ", options_.server, " in ",
                                                    absl::FormatDuration(options_.timeout),
                                                    "; --timeout waits longer"));
  }
  return absl::Status(code, text);
}

absl::Status CoordinatorClient::Repeat(
    const std::function<grpc::Status(grpc::ClientContext&)>& call) const {
  const absl::Duration deadline = SteadyNow() + options_.timeout;
  RetryPauses pauses;
  bool told = false;
  while (true) {
    const auto context = NewContext();
    context->set_deadline(DeadlineIn(deadline - SteadyNow()));
    const grpc::Status status = call(*context);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) reached_ = true;
    if (!reached_ && options_.fails_at_once && NobodyListensHere(options_.server)) {
      return absl::UnavailableError(absl::StrCat(
          "nothing listens at ", options_.server,
          ": 'nibble cluster up' starts a cluster here, --server or NIBBLE_SERVER names another, "
          "and --timeout waits for one that is starting"));
    }
    const absl::Duration pause = pauses.Next();
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE || SteadyNow() + pause >= deadline) {
      return Told(status);
    }
    if (!std::exchange(told, true) && options_.say) {
      options_.say(absl::StrCat(options_.server, " does not answer yet; trying for ",
                                absl::FormatDuration(options_.timeout)));
    }
    absl::SleepFor(pause);
  }
}

}  // namespace nibble
