#include "common/metrics/http_exposer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/exposition_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

// A peer that sends and receives raw bytes.
class Peer {
 public:
  explicit Peer(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name = {};
    name.sin_family = AF_INET;
    name.sin_port = htons(static_cast<uint16_t>(port));
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    timeval patience = {.tv_sec = 60, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  }
  ~Peer() { close(socket_); }
  void Send(const std::string& text) {
    (void)send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
  }
  // Whether the server closes the connection, without reading from it: bytes sent to a closed
  // connection reset it.
  bool IsClosed() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    pollfd wait = {.fd = socket_, .events = POLLRDHUP};
    while (std::chrono::steady_clock::now() < end) {
      if (send(socket_, "x", 1, MSG_NOSIGNAL) < 0 || poll(&wait, 1, 10) > 0) return true;
    }
    return false;
  }
  // Everything until the other side closes.
  std::string Receive() {
    std::string received;
    char bytes[4096];
    ssize_t got;
    while ((got = recv(socket_, bytes, sizeof bytes, 0)) > 0) {
      received.append(bytes, static_cast<size_t>(got));
    }
    return received;
  }

 private:
  const int socket_;
};

class HttpExposerTest : public testing::Test {
 protected:
  static HttpExposer::Options Options() {
    return {.listen = "127.0.0.1:0",
            .limits = {.request = milliseconds(150), .response = milliseconds(500)},
            .pages = {{"/page", [] { return HttpAnswer{.body = "here\n"}; }},
                      {"/big", [] { return HttpAnswer{.body = std::string(64 << 20, 'x')}; }},
                      {"/ill", [] { return HealthAnswer(absl::UnavailableError("no store")); }}}};
  }
  void Start(HttpExposer::Options options) {
    auto started = HttpExposer::Start(std::move(options));
    ASSERT_EQ(started.status(), absl::OkStatus());
    exposer_ = *std::move(started);
  }
  std::string Request(const std::string& request) {
    Peer peer(exposer_->port());
    peer.Send(request);
    return peer.Receive();
  }
  void ExpectAlive() {
    const auto page = HttpGet(exposer_->port(), "/page");
    ASSERT_EQ(page.status(), absl::OkStatus());
    EXPECT_EQ(*page, "here\n");
  }

  std::unique_ptr<HttpExposer> exposer_;
};

TEST_F(HttpExposerTest, PagesAreServedByTheirExactPath) {
  Start(Options());
  ExpectAlive();
  EXPECT_THAT(Request("GET /page/x HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Request("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Request("GET /page?x=1 HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  const std::string ill = Request("GET /ill HTTP/1.1\r\n\r\n");
  EXPECT_THAT(ill, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(ill, HasSubstr("no store"));
}

TEST_F(HttpExposerTest, OnlyGetAndHeadAreAllowed) {
  Start(Options());
  EXPECT_THAT(Request("POST /page HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"),
              StartsWith("HTTP/1.1 405"));
  const std::string head = Request("HEAD /page HTTP/1.1\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(head.find("here"), std::string::npos);
}

TEST_F(HttpExposerTest, AFormTakesAPostAndItsWholeBody) {
  HttpExposer::Options options = Options();
  options.limits.body_bytes = 100'000;
  options.forms = {{"/form", [](const HttpPosted& posted) {
                      return HttpAnswer{
                          .code = 202,
                          .body = absl::StrCat(posted.authorization, "|", posted.body.size(), "|",
                                               posted.body.substr(0, 3))};
                    }}};
  Start(std::move(options));
  const auto post = [](size_t bytes) {
    return absl::StrCat("POST /form HTTP/1.1\r\nAuthorization: Bearer t\r\ncontent-length: ", bytes,
                        "\r\n\r\n");
  };
  for (const size_t bytes : {0, 3, 90'000}) {
    EXPECT_THAT(Request(post(bytes) + std::string(bytes, 'y')),
                HasSubstr(absl::StrCat("Bearer t|", bytes, "|", bytes == 0 ? "" : "yyy")));
  }
  const std::string refused = Request(post(100'001) + std::string(100'001, 'y'));
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(refused, HasSubstr("body: 100001 bytes; allowed: 0 to 100000"));
  EXPECT_THAT(Request("GET /form HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Request("POST /page HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"),
              StartsWith("HTTP/1.1 405"));
  EXPECT_EQ(Request(post(5) + "yy"), "") << "the rest never comes: the connection is closed";
  Request("POST /form HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n");
  Request("POST /form HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nabc");
  ExpectAlive();
}

TEST_F(HttpExposerTest, APageIsSentOnceWhateverRangesOfItAreAskedFor) {
  HttpExposer::Options options = Options();
  options.pages["/long"] = [] { return HttpAnswer{.body = std::string(100'000, '#')}; };
  Start(std::move(options));
  std::string ranges = "bytes=0-";
  while (ranges.size() < 6000) ranges += ",0-";
  for (const std::string& range : {std::string("bytes=0-1"), ranges}) {
    const std::string page = Request("GET /long HTTP/1.1\r\nRange: " + range + "\r\n\r\n");
    EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
    EXPECT_EQ(std::count(page.begin(), page.end(), '#'), 100'000);
  }
}

TEST_F(HttpExposerTest, ACompressedBodyIsRefusedUnread) {
  constexpr size_t kBytes = 23;
  // "abc", by gzip.
  const std::string body(
      "\037\213\010\000\000\000\000\000\002\003\113\114\112\006\000\302\101\044\065\003\000\000"
      "\000",
      kBytes);
  HttpExposer::Options options = Options();
  options.limits.body_bytes = 100;
  std::atomic<int> taken = 0;
  options.forms = {{"/form", [&taken](const HttpPosted&) {
                      ++taken;
                      return HttpAnswer{.code = 202};
                    }}};
  Start(std::move(options));
  const std::string head =
      absl::StrCat("POST /form HTTP/1.1\r\nContent-Length: ", kBytes, "\r\nContent-Encoding: ");
  EXPECT_THAT(Request(head + "gzip\r\n\r\n" + body), StartsWith("HTTP/1.1 415"));
  EXPECT_EQ(taken, 0);
  EXPECT_THAT(Request(head + "identity\r\n\r\n" + body), StartsWith("HTTP/1.1 202"));
  EXPECT_EQ(taken, 1);
}

TEST_F(HttpExposerTest, MalformedRequestsDoNotStopTheServer) {
  Start(Options());
  std::mt19937_64 random(7);
  std::vector<std::string> requests = {
      "\r\n\r\n",
      "GET\r\n\r\n",
      "GET /page HTTP/9.9\r\n\r\n",
      "GET /%00%ff%zz HTTP/1.1\r\n\r\n",
      "GET /../../etc/passwd HTTP/1.1\r\n\r\n",
      "GET /page HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
      "POST /page HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
      absl::StrCat("GET /page HTTP/1.1\r\nRange: bytes=", std::string(8000, '1'), "-\r\n\r\n"),
      absl::StrCat("GET /page HTTP/1.1\r\nRange: bytes=0-", std::string(7000, ','), "\r\n\r\n"),
      absl::StrCat("GET /", std::string(100'000, 'a'), " HTTP/1.1\r\n\r\n"),
      std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
      std::string("\x16\x03\x01\x02\x00\x01\x00", 7)};
  for (int i = 0; i < 20; ++i) {
    std::string& noise = requests.emplace_back();
    for (int j = 0; j < 200; ++j) noise.push_back(static_cast<char>(random()));
    noise += "\r\n\r\n";
  }
  for (const std::string& request : requests) Request(request);
  ExpectAlive();
}

TEST_F(HttpExposerTest, ATooLongRequestIsNotServed) {
  Start(Options());
  std::string request = "GET /page HTTP/1.1\r\n";
  while (request.size() < (64 << 10)) absl::StrAppend(&request, "X-", request.size(), ": y\r\n");
  EXPECT_THAT(Request(request + "\r\n"), testing::Not(HasSubstr("here")));
  ExpectAlive();
}

TEST_F(HttpExposerTest, AConnectionWithoutACompleteRequestInTimeIsClosed) {
  Start(Options());
  const auto begin = std::chrono::steady_clock::now();
  Request("");
  Request("GET /page HT");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(150));
  ExpectAlive();
}

// Limits longer than any test: a request that these peers delay would never be answered.
TEST_F(HttpExposerTest, HundredsOfHalfRequestsDelayNoOther) {
  HttpExposer::Options options = Options();
  options.limits = {.request = std::chrono::hours(1), .response = std::chrono::hours(1)};
  Start(std::move(options));
  std::vector<std::unique_ptr<Peer>> half;
  for (int i = 0; i < 200; ++i) {
    half.push_back(std::make_unique<Peer>(exposer_->port()));
    if (i % 2 == 0) half.back()->Send("GET /page HTTP/1.1\r\nX: ");
  }
  ExpectAlive();
  // A request that is completed is answered.
  half[0]->Send("y\r\n\r\n");
  EXPECT_THAT(half[0]->Receive(), HasSubstr("here"));
}

TEST_F(HttpExposerTest, AtTheBoundTheOldestHalfRequestIsClosedForANewConnection) {
  HttpExposer::Options options = Options();
  options.limits = {
      .request = std::chrono::hours(1), .response = std::chrono::hours(1), .connections = 4};
  Start(std::move(options));
  std::vector<std::unique_ptr<Peer>> half;
  for (int i = 0; i < 40; ++i) half.push_back(std::make_unique<Peer>(exposer_->port()));
  ExpectAlive();
  EXPECT_EQ(half[0]->Receive(), "");  // closed
  half[39]->Send("GET /page HTTP/1.1\r\n\r\n");
  EXPECT_THAT(half[39]->Receive(), HasSubstr("here"));
}

TEST_F(HttpExposerTest, PeersThatReadNothingDelayNoOtherAndTheirResponsesAreBounded) {
  HttpExposer::Options options = Options();
  options.limits = {
      .request = std::chrono::hours(1), .response = std::chrono::hours(1), .responses = 3};
  Start(std::move(options));
  std::vector<std::unique_ptr<Peer>> unread;
  for (int i = 0; i < 12; ++i) {
    unread.push_back(std::make_unique<Peer>(exposer_->port()));
    unread.back()->Send("GET /big HTTP/1.1\r\n\r\n");
    ExpectAlive();
  }
}

TEST_F(HttpExposerTest, AConnectionWhoseResponseIsNotReadInTimeIsClosed) {
  Start(Options());
  Peer unread(exposer_->port());
  unread.Send("GET /big HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(unread.IsClosed());
  ExpectAlive();
}

TEST_F(HttpExposerTest, TheServerStopsAtOnceWhilePeersAreConnected) {
  HttpExposer::Options options = Options();
  options.limits = {.request = std::chrono::hours(1), .response = std::chrono::hours(1)};
  Start(std::move(options));
  std::vector<std::unique_ptr<Peer>> silent;
  for (int i = 0; i < 6; ++i) silent.push_back(std::make_unique<Peer>(exposer_->port()));
  exposer_.reset();
}

TEST_F(HttpExposerTest, AddressesOffLoopbackAndTakenPortsAreRefused) {
  HttpExposer::Options options = Options();
  options.listen = "0.0.0.0:0";
  EXPECT_TRUE(absl::IsFailedPrecondition(HttpExposer::Start(options).status()));
  Start(Options());
  options.listen = exposer_->address();
  EXPECT_TRUE(absl::IsFailedPrecondition(HttpExposer::Start(options).status()));
  options.or_free_port = true;
  const auto other = HttpExposer::Start(options);
  ASSERT_EQ(other.status(), absl::OkStatus());
  EXPECT_NE((*other)->port(), exposer_->port());
  EXPECT_EQ(*HttpGet((*other)->port(), "/page"), "here\n");
}

}  // namespace
}  // namespace nibble
