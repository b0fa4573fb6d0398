#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_spec.h"
#include "job/notify_url.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kSilentSpec[] =
    "name: s\nmodel: tiny-hybrid\ndata: {train: [a.txt]}\ntraining: {steps: 1000, batch: 16}\n";

absl::StatusOr<JobSpec> ParsedNotify(std::string_view more) {
  return ParseJobSpec(absl::StrCat(kSilentSpec, std::string(more)));
}

std::string NotifyError(std::string_view more) {
  return std::string(ParsedNotify(more).status().message());
}

TEST(NotifyTest, ASpecNamesUrlsAndEvents) {
  const auto spec = ParsedNotify(
      "notify:\n  - {url: \"http://a.example.org:81/x\", on: [completed, recipe_changed]}\n"
      "  - https://b.example.org\n");
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->notify.size(), 2u);
  EXPECT_EQ(spec->notify[0].url, "http://a.example.org:81/x");
  EXPECT_THAT(spec->notify[0].on,
              ElementsAre(NotifyEvent::kCompleted, NotifyEvent::kRecipeChanged));
  EXPECT_EQ(spec->notify[1].on, NotifySpec().on);
  EXPECT_EQ(ParseJobSpec(ToYaml(*spec))->notify, spec->notify);
  EXPECT_THAT(ParsedNotify("")->notify, IsEmpty());
}

TEST(NotifyTest, InvalidEventListsAreRefusedWithTheAllowedValues) {
  EXPECT_THAT(NotifyError("notify: [{url: \"http://a.org\", on: [complete]}]\n"),
              HasSubstr("line 5: notify[0].on[0]: 'complete' is not one of submitted, started, "));
  EXPECT_THAT(NotifyError("notify: [{url: \"http://a.org\", on: []}]\n"),
              HasSubstr("notify[0].on: 0 entries; allowed: 1 to 15"));
  EXPECT_THAT(NotifyError("notify: [{url: \"http://a.org\", on: [failed, failed]}]\n"),
              HasSubstr("notify[0].on: failed is listed twice"));
  EXPECT_THAT(NotifyError("notify: [{on: [failed]}]\n"), HasSubstr("notify[0].url: missing"));
  std::string many = "notify:\n";
  for (int i = 0; i < 9; ++i) absl::StrAppend(&many, "  - http://a", i, ".org\n");
  EXPECT_THAT(NotifyError(many), HasSubstr("notify: 9 entries; allowed: 0 to 8"));
}

TEST(NotifyTest, AUrlHasAHostAPortAndAPath) {
  const auto url = ParseNotifyUrl("http://Hooks.Example.org:8080/a?b=c");
  ASSERT_TRUE(url.ok()) << url.status();
  EXPECT_EQ(url->host, "hooks.example.org");
  EXPECT_EQ(url->port, 8080);
  EXPECT_EQ(url->target, "/a?b=c");
  EXPECT_FALSE(url->tls);
  EXPECT_EQ(url->Origin(), "http://hooks.example.org:8080");
  const auto six = ParseNotifyUrl("https://[2001:DB8::1]?x");
  ASSERT_TRUE(six.ok()) << six.status();
  EXPECT_EQ(six->host, "2001:db8::1");
  EXPECT_EQ(six->port, 443);
  EXPECT_EQ(six->target, "/?x");
  EXPECT_EQ(six->HostHeader(), "[2001:db8::1]");
}

TEST(NotifyTest, AmbiguousHostsAreRefused) {
  for (const char* bad : {"",
                          "ftp://a.org",
                          "http://",
                          "http:///x",
                          "http://a.org:0",
                          "http://a.org:65536",
                          "http://a.org:",
                          "http://a.org:8x",
                          "http://user@a.org",
                          "http://a.org:80@b.org/",
                          "http://a.org#b",
                          "http://a b.org",
                          "http://a.org/\r\nX: y",
                          "http://127.1",
                          "http://2130706433",
                          "http://0x7f000001",
                          "http://1.2.3.0x4",
                          "http://a..b",
                          "http://.a",
                          "http://a.",
                          "http://[::1",
                          "http://[a.org]",
                          "http://[::1]x",
                          "http://a.org\\@b.org",
                          "http://a%2eorg",
                          "http://\xc3\xa9.org",
                          "HTTP://a.org"}) {
    EXPECT_FALSE(ParseNotifyUrl(bad).ok()) << bad;
  }
  EXPECT_FALSE(ParseNotifyUrl("http://a.org/" + std::string(1000, 'x')).ok());
  EXPECT_THAT(NotifyError("notify: [http://user:secret@a.org]\n"),
              HasSubstr("line 5: notify[0].url: a user name or password would be stored"));
}

}  // namespace
}  // namespace nibble
