#include "common/s3/signature.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <array>
#include <cstddef>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace nibble::s3 {
namespace {

constexpr char kAlgorithm[] = "AWS4-HMAC-SHA256";

std::string Hmac(absl::string_view key, absl::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &size);
  return {reinterpret_cast<const char*>(digest.data()), size};
}

}  // namespace

std::string Sha256(absl::string_view bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

std::string Encode(absl::string_view text, bool is_path) {
  std::string encoded;
  for (const char c : text) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' ||
                       c == '_' || c == '~' || (is_path && c == '/');
    if (plain) {
      encoded += c;
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

std::string QueryText(const std::map<std::string, std::string>& query) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : query) {
    parts.push_back(absl::StrCat(Encode(name, false), "=", Encode(value, false)));
  }
  return absl::StrJoin(parts, "&");
}

void Sign(const Credentials& credentials, absl::string_view region, absl::Time now,
          Request& request) {
  const std::string time = absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone());
  const std::string day = time.substr(0, 8);
  request.headers["x-amz-date"] = time;
  request.headers["x-amz-content-sha256"] = request.payload_sha256;
  if (!credentials.session_token.empty()) {
    request.headers["x-amz-security-token"] = credentials.session_token;
  }
  std::string headers;
  std::vector<std::string> names;
  for (const auto& [name, value] : request.headers) {
    absl::StrAppend(&headers, name, ":", absl::StripAsciiWhitespace(value), "\n");
    names.push_back(name);
  }
  const std::string signed_names = absl::StrJoin(names, ";");
  const std::string canonical =
      absl::StrCat(request.method, "\n", Encode(request.path, true), "\n", QueryText(request.query),
                   "\n", headers, "\n", signed_names, "\n", request.payload_sha256);
  const std::string scope = absl::StrCat(day, "/", region, "/s3/aws4_request");
  const std::string text =
      absl::StrCat(kAlgorithm, "\n", time, "\n", scope, "\n", Sha256(canonical));
  std::string key = absl::StrCat("AWS4", credentials.secret_key);
  for (const absl::string_view part : {absl::string_view(day), region, absl::string_view("s3"),
                                       absl::string_view("aws4_request")}) {
    key = Hmac(key, part);
  }
  request.headers["authorization"] = absl::StrCat(
      kAlgorithm, " Credential=", credentials.access_key, "/", scope,
      ",SignedHeaders=", signed_names, ",Signature=", absl::BytesToHexString(Hmac(key, text)));
}

}  // namespace nibble::s3
