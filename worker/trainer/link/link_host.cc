#include "worker/trainer/link/link_host.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr int kBacklog = 64;
constexpr size_t kReadBytes = 65536;
constexpr size_t kMedianSteps = 32;
constexpr size_t kFewestSteps = 3;    // below it there is no median
constexpr size_t kMostSamples = 256;  // not yet taken; beyond it the oldest are dropped

int64_t Median(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

bool NotNow(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

struct LinkHost::Connection {
  int socket = -1;
  std::optional<int32_t> rank;  // known after its hello
  FrameReader reader;
  int64_t told = -1;    // number of the command it was sent
  std::string sending;  // the rest of a frame that is partly sent
};

absl::StatusOr<std::unique_ptr<LinkHost>> LinkHost::Start(Options options) {
  if (!options.clock) return absl::InvalidArgumentError("clock: needed");
  if (options.ranks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("ranks: ", options.ranks, " is below 1"));
  }
  std::unique_ptr<LinkHost> host(new LinkHost(std::move(options)));
  NIBBLE_RETURN_IF_ERROR(host->Listen());
  host->thread_ = std::thread([h = host.get()] { h->Serve(); });
  return host;
}

absl::Status LinkHost::Listen() {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  const std::string& path = options_.address;
  if (path.empty() || path.size() >= sizeof name.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("address: '", path, "' has ", path.size(),
                                                   " bytes, not in [1, ", sizeof name.sun_path - 1,
                                                   "]"));
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  (void)unlink(path.c_str());  // of an earlier life
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (listener_ < 0 || wake_ < 0 ||
      bind(listener_, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0 ||
      listen(listener_, kBacklog) != 0) {
    return absl::UnavailableError(absl::StrCat("listening at ", path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

LinkHost::~LinkHost() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  if (wake_ >= 0) (void)eventfd_write(wake_, 1);
  if (thread_.joinable()) thread_.join();
  if (wake_ >= 0) close(wake_);
  if (listener_ >= 0) {
    close(listener_);
    (void)unlink(options_.address.c_str());
  }
}

void LinkHost::Ask(const ControlWord& word) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (word == word_) return;
    word_ = word;
    ++word_number_;
  }
  (void)eventfd_write(wake_, 1);
}

std::map<int32_t, LinkHost::Rank> LinkHost::RanksNow() const {
  std::map<int32_t, Rank> ranks = ranks_;
  for (const auto& [number, page] : pages_) ranks[number].news.waiting_in = page->Read();
  return ranks;
}

std::map<int32_t, LinkHost::Rank> LinkHost::Ranks() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return RanksNow();
}

std::map<int32_t, LinkHost::Rank> LinkHost::TakeRanks() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::map<int32_t, Rank> taken = RanksNow();
  for (auto& [number, rank] : ranks_) rank.samples.clear();
  return taken;
}

void LinkHost::Serve() {
  std::vector<std::unique_ptr<Connection>> connections;
  while (true) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (closing_) break;
    }
    std::vector<pollfd> waits = {{.fd = wake_, .events = POLLIN},
                                 {.fd = listener_, .events = POLLIN}};
    for (const auto& connection : connections) {
      const bool writing = !connection->sending.empty();
      waits.push_back({.fd = connection->socket,
                       .events = static_cast<int16_t>(POLLIN | (writing ? POLLOUT : 0))});
    }
    (void)poll(waits.data(), waits.size(), -1);
    eventfd_t ignored;
    (void)eventfd_read(wake_, &ignored);
    bool heard = false;
    for (size_t i = 0; i < connections.size(); ++i) {
      Connection& connection = *connections[i];
      bool stays = true;
      if ((waits[i + 2].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
        stays = Hear(connection);
        heard = true;
      }
      if (!stays || !Tell(connection)) Hang(connection);
    }
    std::erase_if(connections, [](const auto& connection) { return connection->socket < 0; });
    if ((waits[1].revents & POLLIN) != 0) Accept(connections);
    if (heard && options_.changed) options_.changed();
  }
  for (const auto& connection : connections) Hang(*connection);
}

void LinkHost::Accept(std::vector<std::unique_ptr<Connection>>& connections) {
  const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket < 0) return;
  connections.push_back(std::make_unique<Connection>());
  connections.back()->socket = socket;
}

bool LinkHost::Hear(Connection& connection) {
  char bytes[kReadBytes];
  while (true) {
    const ssize_t got = recv(connection.socket, bytes, sizeof bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && NotNow(errno)) return true;
    if (got <= 0) return false;
    connection.reader.Append({bytes, static_cast<size_t>(got)});
    while (true) {
      const absl::StatusOr<std::optional<std::string>> message = connection.reader.Next();
      if (!message.ok()) return false;
      if (!message->has_value()) break;
      if (!Take(connection, **message)) return false;
    }
  }
}

bool LinkHost::Take(Connection& connection, const std::string& message) {
  const int64_t now = options_.clock();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!connection.rank.has_value()) {
    const absl::StatusOr<LinkHello> hello = DecodeHello(message);
    if (!hello.ok() || hello->attempt != options_.attempt || hello->rank < options_.first_rank ||
        hello->rank >= options_.first_rank + options_.ranks || ranks_[hello->rank].connected) {
      return false;
    }
    connection.rank = hello->rank;
    Rank& rank = ranks_[hello->rank];
    rank.connected = true;
    rank.pid = hello->pid;
    // A page is optional.
    auto page = WaitingPage::Open(WaitingPage::PathOf(options_.address, hello->rank));
    if (page.ok()) pages_[hello->rank] = *std::move(page);
    rank.step_at_ms = now;
    return true;
  }
  absl::StatusOr<RankNews> news = DecodeNews(message);
  if (!news.ok()) return false;
  Rank& rank = ranks_[*connection.rank];
  if (!news->precision.empty()) {
    rank.precision = std::make_shared<const std::vector<PrecisionSample>>(
        std::exchange(news->precision, std::vector<PrecisionSample>()));
  }
  const bool stood = rank.news.doing != RankNews::Doing::kSteps;
  if (news->next_step > rank.news.next_step || stood) {
    std::vector<int64_t>& times = step_ms_[*connection.rank];
    // The first step, and one after a pause, also contains other waits.
    if (!stood) times.push_back(now - rank.step_at_ms);
    if (times.size() > kMedianSteps) times.erase(times.begin());
    rank.median_step_ms = times.size() < kFewestSteps ? 0 : std::max<int64_t>(1, Median(times));
    rank.step_at_ms = now;
  }
  if (news->has_sample && (!rank.news.has_sample || news->step != rank.news.step)) {
    rank.samples.push_back(*news);
    if (rank.samples.size() > kMostSamples) rank.samples.erase(rank.samples.begin());
  }
  rank.news = *news;
  return true;
}

bool LinkHost::Tell(Connection& connection) {
  if (connection.rank != 0) return true;
  if (connection.sending.empty()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (connection.told == word_number_) return true;
    connection.sending = FrameOf(EncodeControl(word_));
    connection.told = word_number_;
  }
  while (!connection.sending.empty()) {
    const ssize_t sent =
        send(connection.socket, connection.sending.data(), connection.sending.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && NotNow(errno)) return true;
    if (sent < 0) return false;
    connection.sending.erase(0, static_cast<size_t>(sent));
  }
  return Tell(connection);  // sends a command that was set meanwhile
}

void LinkHost::Hang(Connection& connection) {
  if (connection.socket < 0) return;
  close(connection.socket);
  connection.socket = -1;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (connection.rank.has_value()) ranks_[*connection.rank].connected = false;
}

}  // namespace nibble
