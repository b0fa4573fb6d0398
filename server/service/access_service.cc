// nibble.v1.Access: tokens. Each change is one replacement of a small file, made in the call.
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/nibble/v1/access.pb.h"
#include "server/access/authenticator.h"
#include "server/controller/clock.h"
#include "server/service/admission.h"
#include "server/service/admitted_service.h"
#include "server/service/services.h"
#include "server/service/wire.h"

namespace nibble {
namespace {

constexpr char kCreateTokenCall[] = "/nibble.v1.Access/CreateToken";
constexpr char kListTokensCall[] = "/nibble.v1.Access/ListTokens";
constexpr char kRevokeTokenCall[] = "/nibble.v1.Access/RevokeToken";

class AccessService : public AdmittedService {
 public:
  explicit AccessService(Admission& admission) : AdmittedService(admission) {
    AddUnary<v1::CreateTokenRequest, v1::CreateTokenResponse>(
        kCreateTokenCall, [this](auto& context, auto& caller, auto& request, auto& response) {
          absl::StatusOr<v1::Token> made = Ready(request.status);
          if (made.ok()) made = tokens().Create(request.message, caller.author, Now());
          return AnswerToken(context, caller, kCreateTokenCall, std::move(made), response);
        });
    AddUnary<v1::RevokeTokenRequest, v1::RevokeTokenResponse>(
        kRevokeTokenCall, [this](auto& context, auto& caller, auto& request, auto& response) {
          absl::StatusOr<v1::Token> revoked = Ready(request.status);
          if (revoked.ok()) revoked = tokens().Revoke(request.message.id(), caller.author, Now());
          if (revoked.ok()) this->admission().EndInvalid();
          return AnswerToken(context, caller, kRevokeTokenCall, std::move(revoked), response);
        });
    AddUnary<v1::ListTokensRequest, v1::ListTokensResponse>(
        kListTokensCall, [this](auto& context, auto& /*caller*/, auto& request, auto& response) {
          const absl::Status status = Ready(request.status).status();
          if (status.ok()) {
            for (v1::Token& token : tokens().List()) *response.add_tokens() = std::move(token);
          }
          grpc::ServerUnaryReactor* const reactor = context.DefaultReactor();
          reactor->Finish(ToGrpc(status));
          return reactor;
        });
  }

 private:
  TokenRegistry& tokens() { return admission().authenticator()->tokens(); }
  int64_t Now() { return admission().clock().NowUnixMs(); }

  absl::StatusOr<v1::Token> Ready(const absl::Status& received) {
    if (!received.ok()) return received;
    if (admission().authenticator() != nullptr) return v1::Token();
    return absl::FailedPreconditionError(
        "callers are not authenticated, so tokens have no meaning; start the coordinator with "
        "--bootstrap-token-file (docs/guide/security.md)");
  }

  template <class Response>
  grpc::ServerUnaryReactor* AnswerToken(grpc::CallbackServerContext& context,
                                        const CallerIdentity& caller, const char* call,
                                        absl::StatusOr<v1::Token> token, Response& response) {
    std::string subject;
    if (token.ok()) {
      subject = absl::StrCat(
          "token ", token->id(), " of ", token->name(), ", ", RoleText(token->role()),
          token->projects().empty() ? "" : ", projects ", absl::StrJoin(token->projects(), ","));
      *response.mutable_token() = *std::move(token);
    }
    admission().Record(caller, call, subject, "", token.status());
    grpc::ServerUnaryReactor* const reactor = context.DefaultReactor();
    reactor->Finish(ToGrpc(token.status()));
    return reactor;
  }
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAccessService(Admission& admission) {
  return std::make_unique<AccessService>(admission);
}

}  // namespace nibble
