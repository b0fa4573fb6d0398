#include "server/notify/http_post.h"

#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/notify/testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

HttpPost PostTo(const std::string& url) {
  const auto parsed = ParseNotifyUrl(url);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return {.url = *parsed,
          .headers = {{"Content-Type", "application/json"}},
          .body = "{\"a\":1}",
          .limit = std::chrono::seconds(20),
          .may_connect = [](const IpAddress&) { return true; }};
}

TEST(HttpPostTest, ARequestHasHeadersAndBodyAndIsAnsweredWithItsCode) {
  TestReceiver receiver;
  const Cancel cancel;
  EXPECT_EQ(*PostHttp(PostTo(receiver.Url("/a?b=c")), cancel), 204);
  const std::string request = receiver.Request(0);
  EXPECT_THAT(request, StartsWith("POST /a?b=c HTTP/1.1\r\n"));
  EXPECT_THAT(request, HasSubstr(absl::StrCat("\r\nHost: 127.0.0.1:", receiver.port(), "\r\n")));
  EXPECT_THAT(request, HasSubstr("\r\nContent-Length: 7\r\n"));
  EXPECT_THAT(request, HasSubstr("\r\nContent-Type: application/json\r\n"));
  EXPECT_EQ(TestReceiver::BodyOf(request), "{\"a\":1}");
  receiver.Script({TestReceiver::kError, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Yes\r\n\r\n"});
  EXPECT_EQ(*PostHttp(PostTo(receiver.Url()), cancel), 500);
  EXPECT_EQ(*PostHttp(PostTo(receiver.Url()), cancel), 202);
}

TEST(HttpPostTest, ARedirectIsAnAnswerAndNotFollowed) {
  TestReceiver elsewhere;
  TestReceiver receiver;
  receiver.Script({absl::StrCat("HTTP/1.1 302 Found\r\nLocation: ", elsewhere.Url(), "\r\n\r\n")});
  EXPECT_EQ(*PostHttp(PostTo(receiver.Url()), Cancel()), 302);
  EXPECT_EQ(elsewhere.count(), 0u);
}

TEST(HttpPostTest, AReceiverThatHangsOrDripsCostsAtMostTheTimeLimit) {
  TestReceiver receiver;
  for (const char* const how : {TestReceiver::kHang, TestReceiver::kDrip}) {
    receiver.Script({how});
    HttpPost post = PostTo(receiver.Url());
    post.limit = std::chrono::milliseconds(200);
    const auto begin = std::chrono::steady_clock::now();
    const auto code = PostHttp(post, Cancel());
    EXPECT_TRUE(absl::IsDeadlineExceeded(code.status()) || absl::IsUnavailable(code.status()))
        << code.status();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  }
}

TEST(HttpPostTest, APostThatIsCancelledEnds) {
  TestReceiver receiver;
  receiver.Script({TestReceiver::kHang});
  Cancel cancel;
  std::thread canceller([&] {
    receiver.Request(0);
    cancel.Set();
  });
  EXPECT_TRUE(absl::IsCancelled(PostHttp(PostTo(receiver.Url()), cancel).status()));
  canceller.join();
}

TEST(HttpPostTest, AddressesThatAreNotAllowedAreNotConnectedTo) {
  TestReceiver receiver;
  for (const char* const host : {"127.0.0.1", "localhost"}) {
    HttpPost post = PostTo(absl::StrCat("http://", host, ":", receiver.port()));
    post.may_connect = [](const IpAddress& address) { return IsPublic(address); };
    const auto code = PostHttp(post, Cancel());
    EXPECT_TRUE(absl::IsPermissionDenied(code.status())) << code.status();
    EXPECT_THAT(std::string(code.status().message()), HasSubstr("--notify-allow"));
  }
  EXPECT_EQ(receiver.count(), 0u);
}

TEST(HttpPostTest, NonHttpAnswersAndRefusedConnectionsAreUnavailable) {
  TestReceiver receiver;
  receiver.Script({"220 mail ready\r\n", "HTTP/1.1"});
  EXPECT_THAT(std::string(PostHttp(PostTo(receiver.Url()), Cancel()).status().message()),
              HasSubstr("not HTTP/1.1"));
  EXPECT_THAT(std::string(PostHttp(PostTo(receiver.Url()), Cancel()).status().message()),
              HasSubstr("closed the connection"));
  int closed = 0;
  { closed = TestReceiver().port(); }
  const auto code = PostHttp(PostTo(absl::StrCat("http://127.0.0.1:", closed)), Cancel());
  EXPECT_TRUE(absl::IsUnavailable(code.status())) << code.status();
}

// A client that refuses a certificate closes its connection, which the receiver may write to.
class TlsPostTest : public testing::Test {
 protected:
  ~TlsPostTest() override {
    unsetenv("SSL_CERT_FILE");
    signal(SIGPIPE, before_);
  }

  absl::StatusOr<int> Post(const std::string& host) {
    HttpPost post = PostTo(absl::StrCat("https://", host, ":", receiver_.port(), "/hook"));
    // The receiver listens on IPv4 only.
    post.may_connect = [](const IpAddress& address) { return IpText(address) == "127.0.0.1"; };
    return PostHttp(post, Cancel());
  }

  const sighandler_t before_ = signal(SIGPIPE, SIG_IGN);
  const std::string certificate_ = absl::StrCat(testing::TempDir(), "/certificate.pem");
  TlsReceiver receiver_{certificate_};
};

TEST_F(TlsPostTest, ACertificateOfATrustedRootAndThisHostIsAccepted) {
  setenv("SSL_CERT_FILE", certificate_.c_str(), 1);
  const auto code = Post("localhost");
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 204);
}

TEST_F(TlsPostTest, AnUntrustedCertificateIsRefused) {
  EXPECT_THAT(std::string(Post("localhost").status().message()), HasSubstr("TLS handshake: self"));
}

TEST_F(TlsPostTest, ACertificateOfAnotherHostIsRefused) {
  setenv("SSL_CERT_FILE", certificate_.c_str(), 1);
  EXPECT_THAT(std::string(Post("127.0.0.1").status().message()), HasSubstr("mismatch"));
}

TEST(HttpPostTest, TlsWithAPlainHttpReceiverFails) {
  TestReceiver receiver;
  receiver.Script({"HTTP/1.1 400 Bad Request\r\n\r\n"});
  HttpPost post = PostTo(absl::StrCat("https://127.0.0.1:", receiver.port()));
  post.limit = std::chrono::milliseconds(200);
  EXPECT_FALSE(PostHttp(post, Cancel()).ok());
}

}  // namespace
}  // namespace nibble
