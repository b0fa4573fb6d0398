// Errors of OpenSSL as text.
//
// Thread-safety: OpenSSL keeps errors per thread.
#ifndef NIBBLE_COMMON_OPENSSL_OPENSSL_ERROR_H_
#define NIBBLE_COMMON_OPENSSL_OPENSSL_ERROR_H_

#include <string>

#include "absl/strings/string_view.h"

namespace nibble {

// The first error of this thread since the last one was taken; `otherwise` if there is none. All
// are forgotten, so that later callers do not find them.
std::string TakeOpenSslError(absl::string_view otherwise);

}  // namespace nibble

#endif  // NIBBLE_COMMON_OPENSSL_OPENSSL_ERROR_H_
