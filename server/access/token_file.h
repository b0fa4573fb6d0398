// A bearer token in a file that the operator names: it is made with a new token if it does not
// exist, and must be readable by its owner alone.
//
// Thread-safety: a function of the disk.
#ifndef NIBBLE_SERVER_ACCESS_TOKEN_FILE_H_
#define NIBBLE_SERVER_ACCESS_TOKEN_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

// A new token: kTokenPrefix and 32 random bytes. Internal: the system has no random numbers.
absl::StatusOr<std::string> NewTokenText();

// The token, without white space around it. FailedPrecondition, beginning with the name of the
// flag: the file may be read by others, or its token is shorter than 32 bytes.
absl::StatusOr<std::string> ReadOrMakeToken(absl::string_view flag, const std::string& path);

// Whether the header "Authorization" is "Bearer TOKEN". Takes as long for every wrong token of
// its length.
bool IsBearer(absl::string_view authorization, absl::string_view token);

}  // namespace nibble

#endif  // NIBBLE_SERVER_ACCESS_TOKEN_FILE_H_
