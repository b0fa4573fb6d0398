#include "client/cluster/local_processes.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace nibble {
namespace {

constexpr int kLowest = 10'000;
constexpr int kUsualEphemeral = 32'768;
constexpr int kTries = 1000;

int FirstEphemeral() {
  int first = 0;
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  return range >> first ? first : kUsualEphemeral;
}

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

bool IsPortFree(int port) {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (file < 0) return false;
  const int yes = 1;
  // A port closed a moment ago counts as free; one with a listener does not.
  (void)setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const sockaddr_in address = Loopback(port);
  const bool free = bind(file, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                    listen(file, 1) == 0;
  close(file);
  return free;
}

bool IsListening(int port) {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (file < 0) return false;
  const sockaddr_in address = Loopback(port);
  const bool accepted =
      connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(file);
  return accepted;
}

absl::StatusOr<int> ChooseFreePort() {
  const int first = FirstEphemeral();
  const int lowest = first > kLowest ? kLowest : 1024;
  std::random_device random;
  std::uniform_int_distribution<int> draw(lowest, first > lowest ? first - 1 : 65'535);
  for (int i = 0; i < kTries; ++i) {
    const int port = draw(random);
    if (IsPortFree(port)) return port;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("port: none of ", kTries, " tried below ", first, " is free on 127.0.0.1"));
}

namespace {

constexpr std::streamoff kMostBytes = 4096;
constexpr size_t kMostLines = 12;

}  // namespace

std::string CardsOfWorker(int worker, int slots, absl::string_view visible) {
  const std::vector<absl::string_view> entries =
      absl::StrSplit(visible, ',', absl::SkipWhitespace());
  std::vector<std::string> cards;
  for (int card = (worker - 1) * slots; card < worker * slots; ++card) {
    if (visible.empty()) {
      cards.push_back(absl::StrCat(card));
    } else if (card < static_cast<int>(entries.size())) {
      cards.emplace_back(absl::StripAsciiWhitespace(entries[card]));
    }
  }
  return absl::StrJoin(cards, ",");
}

std::string LogTail(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "(cannot be read)";
  const std::streamoff size = file.tellg();
  const std::streamoff begin = std::max<std::streamoff>(0, size - kMostBytes);
  file.seekg(begin);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  // The first one may be a partial line.
  size_t first = begin > 0 && lines.size() > 1 ? 1 : 0;
  if (lines.size() - first > kMostLines) first = lines.size() - kMostLines;
  lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(first));
  return lines.empty() ? "(is empty)" : absl::StrJoin(lines, "\n");
}

}  // namespace nibble
