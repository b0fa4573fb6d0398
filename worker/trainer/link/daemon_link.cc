#include "worker/trainer/link/daemon_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr size_t kReadBytes = 65536;

bool NotNow(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

absl::Status Gone(const char* doing, int error) {
  return absl::UnavailableError(
      absl::StrCat("the daemon is gone: ", doing, ": ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DaemonLink>> DaemonLink::Connect(const Options& options) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (options.address.empty() || options.address.size() >= sizeof name.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("address: '", options.address, "' has ",
                                                   options.address.size(), " bytes, not in [1, ",
                                                   sizeof name.sun_path - 1, "]"));
  }
  std::memcpy(name.sun_path, options.address.data(), options.address.size());
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return absl::InternalError(absl::StrCat("socket: ", std::strerror(errno)));
  std::unique_ptr<DaemonLink> link(new DaemonLink(socket));
  if (connect(socket, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no daemon at ", options.address, ": ", std::strerror(errno)));
  }
  link->sending_ = FrameOf(EncodeHello(
      {.rank = options.rank, .attempt = options.attempt, .pid = static_cast<int64_t>(getpid())}));
  NIBBLE_RETURN_IF_ERROR(link->Send());
  return link;
}

DaemonLink::~DaemonLink() {
  // Sends the last report of a rank that ends, if the socket has room.
  if (gone_.ok()) (void)Send();
  close(socket_);
}

void DaemonLink::Report(const RankNews& news) {
  next_ = FrameOf(EncodeNews(news));
  if (gone_.ok()) gone_ = Send();
}

absl::Status DaemonLink::Send() {
  while (true) {
    if (sending_.empty()) sending_ = std::exchange(next_, std::string());
    if (sending_.empty()) return absl::OkStatus();
    const ssize_t sent =
        send(socket_, sending_.data(), sending_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && NotNow(errno)) return absl::OkStatus();
    if (sent < 0) return Gone("sending", errno);
    sending_.erase(0, static_cast<size_t>(sent));
  }
}

absl::Status DaemonLink::Receive() {
  char bytes[kReadBytes];
  while (true) {
    const ssize_t got = recv(socket_, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && NotNow(errno)) return absl::OkStatus();
    if (got < 0) return Gone("receiving", errno);
    if (got == 0) return absl::UnavailableError("the daemon is gone: it has closed the link");
    reader_.Append({bytes, static_cast<size_t>(got)});
    while (true) {
      NIBBLE_ASSIGN_OR_RETURN(std::optional<std::string> message, reader_.Next());
      if (!message.has_value()) break;
      NIBBLE_ASSIGN_OR_RETURN(ControlWord word, DecodeControl(*message));
      word_ = std::move(word);
      heard_ = true;
    }
  }
}

absl::StatusOr<ControlWord> DaemonLink::Poll() {
  if (gone_.ok()) gone_ = Send();
  if (gone_.ok()) gone_ = Receive();
  if (!gone_.ok()) return gone_;
  return word_;
}

absl::Status DaemonLink::AwaitWord(std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (true) {
    NIBBLE_RETURN_IF_ERROR(Poll().status());
    if (heard_) return absl::OkStatus();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("the daemon has not said within ", patience.count(), " ms what it wants"));
    }
    pollfd one = {.fd = socket_, .events = POLLIN};
    (void)poll(&one, 1, static_cast<int>(left.count()));
  }
}

absl::StatusOr<ControlWord> DaemonLink::WaitForChange(std::chrono::milliseconds patience) {
  pollfd one = {.fd = socket_, .events = POLLIN};
  // An interrupted wait returns early, and the paused rank calls again.
  (void)poll(&one, 1, static_cast<int>(patience.count()));
  return Poll();
}

// A rank that is killed between two stores leaves a partial name, which only people read.
struct WaitingPage::Page {
  static constexpr size_t kNameBytes = 32;
  std::atomic<uint64_t> number;  // of the operation; 0: none
  std::atomic<char> name[kNameBytes];
};

std::string WaitingPage::PathOf(const std::string& link_address, int32_t rank) {
  return absl::StrCat(link_address, ".", rank);
}

absl::StatusOr<std::unique_ptr<WaitingPage>> WaitingPage::Map(const std::string& path, int flags) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  const int file = open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0 && errno == ENOENT) {
    return absl::NotFoundError(absl::StrCat("there is no ", path));
  }
  if (file < 0) {
    return absl::UnavailableError(absl::StrCat("opening ", path, ": ", std::strerror(errno)));
  }
  void* page = MAP_FAILED;
  if (ftruncate(file, sizeof(Page)) == 0) {
    page = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  const int error = errno;
  close(file);
  if (page == MAP_FAILED) {
    return absl::UnavailableError(absl::StrCat("mapping ", path, ": ", std::strerror(error)));
  }
  return std::unique_ptr<WaitingPage>(new WaitingPage(path, static_cast<Page*>(page)));
}

absl::StatusOr<std::unique_ptr<WaitingPage>> WaitingPage::Create(const std::string& path) {
  return Map(path, O_CREAT | O_TRUNC);
}

absl::StatusOr<std::unique_ptr<WaitingPage>> WaitingPage::Open(const std::string& path) {
  return Map(path, 0);
}

WaitingPage::~WaitingPage() {
  munmap(page_, sizeof(Page));
  (void)unlink(path_.c_str());  // the other side may have done so
}

void WaitingPage::Enter(const char* operation, uint64_t number) {
  const size_t size = std::min(std::strlen(operation), Page::kNameBytes - 1);
  for (size_t i = 0; i < Page::kNameBytes; ++i) {
    page_->name[i].store(i < size ? operation[i] : '\0', std::memory_order_relaxed);
  }
  page_->number.store(number, std::memory_order_release);
}

void WaitingPage::Leave() { page_->number.store(0, std::memory_order_release); }

std::string WaitingPage::Read() const {
  const uint64_t number = page_->number.load(std::memory_order_acquire);
  if (number == 0) return "";
  std::string name;
  for (size_t i = 0; i + 1 < Page::kNameBytes; ++i) {
    const char c = page_->name[i].load(std::memory_order_relaxed);
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) break;
    name += c;
  }
  return absl::StrCat(name, " #", number);
}

}  // namespace nibble
