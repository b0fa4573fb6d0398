// nibble token create | list | revoke
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/remote/remote_commands.h"
#include "client/remote/verb.h"
#include "client/shell/command_line.h"
#include "common/command_line/command_line.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"
#include "common/text/table.h"
#include "proto/nibble/v1/access.pb.h"

namespace nibble {
namespace {

constexpr Rpc<v1::CreateTokenRequest, v1::CreateTokenResponse> kCreateToken{
    "/nibble.v1.Access/CreateToken"};
constexpr Rpc<v1::ListTokensRequest, v1::ListTokensResponse> kListTokens{
    "/nibble.v1.Access/ListTokens"};
constexpr Rpc<v1::RevokeTokenRequest, v1::RevokeTokenResponse> kRevokeToken{
    "/nibble.v1.Access/RevokeToken"};

constexpr size_t kTokenSecretBytes = 32;

struct TokenFlags {
  RemoteFlags remote;
  std::string name, role, id, file;
  std::string valid = "720h";
  std::vector<std::string> projects;
};

std::string TokenRoleText(v1::Role role) {
  return absl::AsciiStrToLower(v1::Role_Name(role).substr(sizeof("ROLE_") - 1));
}

std::string TokenTimeText(int64_t unix_ms) {
  if (unix_ms == 0) return "never";
  return absl::FormatTime("%Y-%m-%d %H:%M", absl::FromUnixMillis(unix_ms), absl::LocalTimeZone());
}

std::string TokenStateText(const v1::Token& token, int64_t now_unix_ms) {
  if (token.revoked_unix_ms() > 0) return absl::StrCat("revoked by ", token.revoked_by());
  const bool over = token.expires_unix_ms() > 0 && now_unix_ms >= token.expires_unix_ms();
  return over ? "expired" : "valid";
}

absl::StatusOr<std::string> NewToken() {
  unsigned char secret[kTokenSecretBytes];
  if (RAND_bytes(secret, sizeof secret) != 1) {
    return absl::InternalError("token: the system has no random numbers");
  }
  return absl::StrCat("nibble_", absl::WebSafeBase64Escape(absl::string_view(
                                     reinterpret_cast<const char*>(secret), sizeof secret)));
}

std::string TokenHash(const std::string& token) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return hash;
}

// A file for its owner alone.
absl::Status WriteSecret(const std::string& path, const std::string& text) {
  const mode_t before = umask(S_IRWXG | S_IRWXO);
  const absl::Status status = ReplaceFile(path, text + "\n");
  umask(before);
  return status;
}

absl::StatusOr<Reply> CreateToken(Session& session, const TokenFlags& flags) {
  v1::CreateTokenRequest request;
  request.set_name(flags.name);
  v1::Role role = v1::ROLE_UNSPECIFIED;
  (void)v1::Role_Parse(absl::StrCat("ROLE_", absl::AsciiStrToUpper(flags.role)), &role);
  request.set_role(role);
  for (const std::string& project : flags.projects) request.add_projects(project);
  if (flags.valid != "forever") {
    NIBBLE_ASSIGN_OR_RETURN(const absl::Duration valid, ParseSeconds(flags.valid));
    request.set_valid_ms(absl::ToInt64Milliseconds(valid));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string secret, NewToken());
  request.set_secret_sha256(TokenHash(secret));
  NIBBLE_ASSIGN_OR_RETURN(const v1::CreateTokenResponse made, session.Call(kCreateToken, request));
  const v1::Token& token = made.token();
  session.Say(absl::StrCat("token ", token.id(), " of ", token.name(), ", ",
                           TokenRoleText(token.role()),
                           ", expires: ", TokenTimeText(token.expires_unix_ms()),
                           flags.file.empty() ? "; it is not shown again" : ""));
  nlohmann::ordered_json json = JsonOf(made);
  if (flags.file.empty()) {
    json["secret"] = secret;
    return Reply{.text = secret + "\n", .json = JsonText(json)};
  }
  NIBBLE_RETURN_IF_ERROR(WriteSecret(flags.file, secret));
  json["file"] = flags.file;
  return Reply{.text = flags.file + "\n", .json = JsonText(json)};
}

absl::StatusOr<Reply> ListTokens(Session& session, const TokenFlags& /*flags*/) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ListTokensResponse listed,
                          session.Call(kListTokens, v1::ListTokensRequest()));
  const int64_t now = absl::ToUnixMillis(absl::Now());
  TextTable table({"TOKEN", "NAME", "ROLE", "PROJECTS", "CREATED", "BY", "EXPIRES", "STATE"});
  for (const v1::Token& token : listed.tokens()) {
    table.Add({token.id(), token.name(), TokenRoleText(token.role()),
               token.projects().empty() ? "all" : absl::StrJoin(token.projects(), ","),
               TokenTimeText(token.created_unix_ms()), token.author(),
               TokenTimeText(token.expires_unix_ms()), TokenStateText(token, now)});
  }
  return ReplyOf(listed, table.Text());
}

absl::StatusOr<Reply> RevokeToken(Session& session, const TokenFlags& flags) {
  v1::RevokeTokenRequest request;
  request.set_id(flags.id);
  NIBBLE_ASSIGN_OR_RETURN(const v1::RevokeTokenResponse revoked,
                          session.Call(kRevokeToken, request));
  return ReplyOf(revoked, absl::StrCat("token ", revoked.token().id(), " of ",
                                       revoked.token().name(), " is revoked\n"));
}

}  // namespace

void AddTokenNoun(Command app, int& exit_code) {
  const Command token = NounOf(app, "token", "Tokens that prove who calls a coordinator");
  RemoteVerb<TokenFlags> create(token, "create", "Make a token, and print it once");
  create.app()
      .Add("NAME", create->name, "identity of its holder: a person, or a worker")
      .Required();
  create.app()
      .Add("--role", create->role, "what its holder may do")
      .Required()
      .OneOf({"viewer", "submitter", "operator", "worker"});
  create.app()
      .Add("--valid", create->valid, "time until it expires, such as 12h or 720h; or 'forever'")
      .ShowDefault()
      .Check([](const std::string& given) {
        if (given == "forever") return std::string();
        return std::string(ParseSeconds(given).status().message());
      });
  create.app()
      .Add("--project", create->projects,
           "project in which alone its holder may change anything; may be repeated; default: all")
      .OneValueEach();
  create.app().Add("--file", create->file,
                   "file to write the token to, for its owner alone, instead of printing it");
  create.app().Footer("Example: nibble token create ann --role submitter --file ann.token");
  create.Runs(exit_code, CreateToken);

  RemoteVerb<TokenFlags> list(token, "list", "List tokens, without their secrets");
  list.Runs(exit_code, ListTokens);

  RemoteVerb<TokenFlags> revoke(token, "revoke", "Refuse a token from now on");
  revoke.app().Add("TOKEN", revoke->id, "its id, from 'nibble token list'").Required();
  revoke.Runs(exit_code, RevokeToken);
}

}  // namespace nibble
