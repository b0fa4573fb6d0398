#include "common/openssl/openssl_error.h"

#include <openssl/err.h>

namespace nibble {

std::string TakeOpenSslError(absl::string_view otherwise) {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return std::string(otherwise);
  char text[256] = {};
  ERR_error_string_n(code, text, sizeof text);
  return text;
}

}  // namespace nibble
