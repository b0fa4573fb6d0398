#include "client/remote/client_access.h"

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/remote/coordinator_client.h"
#include "common/files/files.h"
#include "common/identity/credentials.h"
#include "common/listen_address.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr size_t kMaxTokenFileBytes = 16 << 10;

// The first that is not empty.
std::string FlagOrVariable(const std::string& flag, const char* variable) {
  if (!flag.empty()) return flag;
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::string> ReadToken(const std::string& source, const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxTokenFileBytes);
  if (!text.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(source, ": ", text.status().message()));
  }
  std::string token(absl::StripAsciiWhitespace(*text));
  if (!token.empty()) return token;
  return absl::FailedPreconditionError(absl::StrCat(source, ": '", path, "' is empty"));
}

absl::StatusOr<std::string> FindToken(const RemoteFlags& flags) {
  if (!flags.token_file.empty()) return ReadToken("--token-file", flags.token_file);
  const std::string token = FlagOrVariable("", "NIBBLE_TOKEN");
  if (!token.empty()) return token;
  const std::string path = FlagOrVariable("", "NIBBLE_TOKEN_FILE");
  if (path.empty()) return std::string();
  return ReadToken("NIBBLE_TOKEN_FILE", path);
}

bool IsOnThisMachine(const std::string& server) {
  const absl::StatusOr<ListenAddress> address = ParseListenAddress("server", server);
  return address.ok() && address->loopback;
}

}  // namespace

absl::StatusOr<ClientAccess> LocalAccess(const std::string& cluster_directory) {
  const LocalIdentity files(cluster_directory);
  std::error_code none;
  if (!std::filesystem::exists(files.Certificate(kClientIdentity), none)) return ClientAccess();
  ClientAccess access;
  NIBBLE_ASSIGN_OR_RETURN(access.credentials,
                          Credentials::Make({.certificate = files.Certificate(kClientIdentity),
                                             .key = files.Key(kClientIdentity),
                                             .authority = files.Authority()}));
  // The coordinator makes it when it first starts.
  if (std::filesystem::exists(files.Token(), none)) {
    NIBBLE_ASSIGN_OR_RETURN(access.token, ReadToken("token", files.Token()));
  }
  return access;
}

absl::StatusOr<ClientAccess> FindAccess(const RemoteFlags& flags, const std::string& server) {
  const TlsFiles files = {.certificate = FlagOrVariable(flags.tls_cert, "NIBBLE_TLS_CERT"),
                          .key = FlagOrVariable(flags.tls_key, "NIBBLE_TLS_KEY"),
                          .authority = FlagOrVariable(flags.tls_ca, "NIBBLE_TLS_CA")};
  ClientAccess access;
  NIBBLE_ASSIGN_OR_RETURN(access.credentials, Credentials::Make(files));
  NIBBLE_ASSIGN_OR_RETURN(access.token, FindToken(flags));
  const std::string directory = DefaultClusterDirectory();
  const absl::StatusOr<std::string> local = ReadClusterAddress(directory);
  if (local.ok() && *local == server) {
    NIBBLE_ASSIGN_OR_RETURN(const ClientAccess own, LocalAccess(directory));
    if (!files.given() && own.credentials != nullptr) access.credentials = own.credentials;
    if (access.token.empty()) access.token = own.token;
  }
  if (!access.token.empty() && !access.credentials->secure() && !IsOnThisMachine(server)) {
    return absl::FailedPreconditionError(
        absl::StrCat("token: it would be sent unencrypted to ", server,
                     ", which is another machine; give --tls-cert, --tls-key and --tls-ca"));
  }
  return access;
}

}  // namespace nibble
