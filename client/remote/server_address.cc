#include "client/remote/server_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
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

// The loopback address that `host` names; an empty family: none.
sockaddr_storage Loopback(const std::string& host, int port, socklen_t& size) {
  sockaddr_storage address = {};
  size = 0;
  auto* const four = reinterpret_cast<sockaddr_in*>(&address);
  auto* const six = reinterpret_cast<sockaddr_in6*>(&address);
  const std::string name = host == "localhost" ? "127.0.0.1" : host;
  if (inet_pton(AF_INET, name.c_str(), &four->sin_addr) == 1 &&
      ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET) {
    four->sin_family = AF_INET;
    four->sin_port = htons(static_cast<uint16_t>(port));
    size = sizeof(*four);
    return address;
  }
  address = {};
  if (name == "[::1]") {
    six->sin6_family = AF_INET6;
    six->sin6_addr = in6addr_loopback;
    six->sin6_port = htons(static_cast<uint16_t>(port));
    size = sizeof(*six);
  }
  return address;
}

}  // namespace

bool NobodyListensHere(const std::string& server) {
  const size_t colon = server.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(server.substr(colon + 1), &port)) {
    return false;
  }
  socklen_t size = 0;
  const sockaddr_storage address = Loopback(server.substr(0, colon), port, size);
  if (size == 0) return false;
  const int probe = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return false;
  const bool refused = connect(probe, reinterpret_cast<const sockaddr*>(&address), size) != 0 &&
                       errno == ECONNREFUSED;
  close(probe);
  return refused;
}

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
