#include "server/access/token_file.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/errno_error.h"
#include "common/files/files.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"
#include "server/access/token_registry.h"

namespace nibble {
namespace {

constexpr char kBearer[] = "bearer ";
constexpr size_t kSecretBytes = 32;
constexpr size_t kLeastTokenBytes = 32;
constexpr size_t kMostTokenFile = size_t{1} << 20;

}  // namespace

absl::StatusOr<std::string> NewTokenText() {
  unsigned char secret[kSecretBytes];
  if (RAND_bytes(secret, sizeof secret) != 1) {
    return absl::InternalError("token: the system has no random numbers");
  }
  const absl::string_view bytes(reinterpret_cast<const char*>(secret), sizeof secret);
  std::string text = absl::StrCat(kTokenPrefix, absl::WebSafeBase64Escape(bytes));
  OPENSSL_cleanse(secret, sizeof secret);
  return text;
}

absl::StatusOr<std::string> ReadOrMakeToken(absl::string_view flag, const std::string& path) {
  struct stat entry = {};
  if (stat(path.c_str(), &entry) != 0 && errno == ENOENT) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string made, NewTokenText());
    // The staged file is readable by its owner alone from its beginning.
    const mode_t before = umask(S_IRWXG | S_IRWXO);
    const absl::Status written = ReplaceFile(path, made + "\n");
    umask(before);
    NIBBLE_RETURN_IF_ERROR(written);
    if (stat(path.c_str(), &entry) != 0) return ErrnoError(errno, "reading", path);
  }
  if ((entry.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        flag, ": '", path, "' may be read or written by others than its owner; run 'chmod 600'"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMostTokenFile));
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  if (token.size() >= kLeastTokenBytes) return std::string(token);
  return absl::FailedPreconditionError(absl::StrCat(
      flag, ": '", path, "' has a token of ", token.size(), " bytes; allowed: at least ",
      kLeastTokenBytes, ", such as of 'openssl rand -hex 32'; a file that does not exist is made"));
}

bool IsBearer(absl::string_view authorization, absl::string_view token) {
  constexpr size_t kScheme = sizeof kBearer - 1;
  if (absl::AsciiStrToLower(authorization.substr(0, kScheme)) != kBearer) return false;
  const absl::string_view given = absl::StripAsciiWhitespace(authorization.substr(kScheme));
  return given.size() == token.size() &&
         CRYPTO_memcmp(given.data(), token.data(), token.size()) == 0;
}

}  // namespace nibble
