// Signatures of S3 requests: AWS Signature Version 4, with the payload's hash in a header.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_COMMON_S3_SIGNATURE_H_
#define NIBBLE_COMMON_S3_SIGNATURE_H_

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace nibble::s3 {

struct Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // of temporary credentials; otherwise empty
};

struct Request {
  std::string method;
  std::string path;                            // not encoded, with its first slash
  std::map<std::string, std::string> query;    // not encoded
  std::map<std::string, std::string> headers;  // names in lower case; "host" is required
  std::string payload_sha256;                  // in hexadecimal
};

// In hexadecimal.
std::string Sha256(absl::string_view bytes);

// Percent-encodes everything except letters, digits and -._~ and, in a path, slashes.
std::string Encode(absl::string_view text, bool is_path);

// The query in canonical form: encoded, sorted, without "?".
std::string QueryText(const std::map<std::string, std::string>& query);

// Adds the headers x-amz-date, x-amz-content-sha256, x-amz-security-token (with a session token)
// and authorization, which signs all headers.
void Sign(const Credentials& credentials, absl::string_view region, absl::Time now,
          Request& request);

}  // namespace nibble::s3

#endif  // NIBBLE_COMMON_S3_SIGNATURE_H_
