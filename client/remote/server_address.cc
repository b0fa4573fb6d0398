#include "client/remote/server_address.h"

#include <cstdlib>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string AddressFile() {
  std::string home = Variable("NIBBLE_HOME");
  if (home.empty()) {
    home = Variable("HOME");
    if (home.empty()) return "";
    absl::StrAppend(&home, "/.nibble");
  }
  return absl::StrCat(home, "/cluster/address");
}

absl::StatusOr<std::string> Checked(const std::string& source, const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": '", address, "'; allowed: host:port with a port of 1 to 65535"));
  }
  return address;
}

}  // namespace

absl::StatusOr<std::string> FindServerAddress(const std::string& flag) {
  if (!flag.empty()) return Checked("--server", flag);
  const std::string variable = Variable("NIBBLE_SERVER");
  if (!variable.empty()) return Checked("NIBBLE_SERVER", variable);
  const std::string path = AddressFile();
  std::ifstream file(path);
  std::string line;
  if (file && std::getline(file, line)) {
    return Checked(path, std::string(absl::StripAsciiWhitespace(line)));
  }
  return kUsualServer;
}

}  // namespace nibble
