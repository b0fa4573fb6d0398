#include "server/notify/allow_list.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

AllowList List(const std::vector<std::string>& patterns) {
  const auto list = AllowList::Parse(patterns);
  EXPECT_TRUE(list.ok()) << list.status();
  return list.ok() ? *list : AllowList();
}

bool May(const AllowList& list, const std::string& url, const std::string& address) {
  const auto parsed = ParseNotifyUrl(url);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return list.MayPost(*parsed).ok() && list.MayConnect(*parsed, *ParseIp(address));
}

TEST(AllowListTest, WithoutPatternsNothingIsAllowed) {
  const absl::Status status = AllowList().MayPost("http://a.org:8080/secret");
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_EQ(status.message(),
            "the coordinator may not post to http://a.org:8080; its --notify-allow names nothing");
}

TEST(AllowListTest, ANameAllowsThatHostAtPublicAddresses) {
  const AllowList list = List({"Hooks.example.org", "b.example.org:8080"});
  EXPECT_TRUE(May(list, "http://hooks.example.org/x", "93.184.216.34"));
  EXPECT_TRUE(May(list, "https://HOOKS.example.org:99", "2606:2800:220:1::1"));
  EXPECT_TRUE(May(list, "http://b.example.org:8080", "93.184.216.34"));
  EXPECT_FALSE(list.MayPost("http://b.example.org").ok());
  EXPECT_FALSE(list.MayPost("http://x.hooks.example.org").ok());
  EXPECT_FALSE(list.MayPost("http://hooks.example.org.evil.org").ok());
  EXPECT_THAT(std::string(list.MayPost("http://evil.org").message()),
              HasSubstr("names Hooks.example.org, b.example.org:8080"));
}

TEST(AllowListTest, AStarAllowsNamesBelowOrEveryHostAtPublicAddresses) {
  const AllowList below = List({"*.example.org"});
  EXPECT_TRUE(below.MayPost("http://a.example.org").ok());
  EXPECT_TRUE(below.MayPost("http://a.b.example.org").ok());
  EXPECT_FALSE(below.MayPost("http://example.org").ok());
  EXPECT_FALSE(below.MayPost("http://badexample.org").ok());
  const AllowList any = List({"*"});
  EXPECT_TRUE(May(any, "http://93.184.216.34", "93.184.216.34"));
  for (const char* address : {"127.0.0.1",
                              "127.9.9.9",
                              "0.0.0.0",
                              "10.1.2.3",
                              "172.16.0.1",
                              "172.31.255.255",
                              "192.168.1.1",
                              "169.254.169.254",
                              "100.64.0.1",
                              "224.0.0.1",
                              "255.255.255.255",
                              "::",
                              "::1",
                              "fe80::1",
                              "fc00::1",
                              "fd12::1",
                              "ff02::1",
                              "::ffff:127.0.0.1",
                              "::ffff:169.254.169.254",
                              "64:ff9b::7f00:1",
                              "2002:7f00:1::",
                              "2001::1",
                              "2001:db8::1",
                              "::127.0.0.1"}) {
    EXPECT_FALSE(IsPublic(*ParseIp(address))) << address;
    EXPECT_FALSE(May(any, "http://a.org", address)) << address;
  }
  for (const char* address : {"8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1",
                              "64:ff9b::808:808", "2002:808:808::"}) {
    EXPECT_TRUE(IsPublic(*ParseIp(address))) << address;
  }
}

TEST(AllowListTest, AnAddressOrARangeAllowsNonPublicAddresses) {
  const AllowList list = List({"127.0.0.1:8080", "10.0.0.0/9", "[::1]:81", "fd00::/8"});
  EXPECT_TRUE(May(list, "http://127.0.0.1:8080", "127.0.0.1"));
  EXPECT_FALSE(list.MayPost("http://127.0.0.1").ok());
  EXPECT_FALSE(list.MayPost("http://127.0.0.2:8080").ok());
  EXPECT_TRUE(May(list, "http://10.127.0.1", "10.127.0.1"));
  EXPECT_TRUE(May(list, "http://[::ffff:10.0.0.1]", "10.0.0.1"));
  EXPECT_FALSE(list.MayPost("http://10.128.0.1").ok());
  EXPECT_TRUE(May(list, "http://[::1]:81", "::1"));
  EXPECT_TRUE(May(list, "http://[fd00::5]", "fd00::5"));
  EXPECT_FALSE(list.MayPost("http://a.org").ok());
}

TEST(AllowListTest, ANameMayResolveToAPrivateNetworkOnlyIfThatIsGiven) {
  const AllowList list = List({"relay.svc:80=10.96.0.0/12", "localhost"});
  EXPECT_TRUE(May(list, "http://relay.svc", "10.97.0.1"));
  EXPECT_FALSE(May(list, "http://relay.svc", "10.1.0.1"));
  EXPECT_FALSE(May(list, "http://relay.svc", "93.184.216.34"));
  EXPECT_FALSE(May(list, "http://relay.svc:81", "10.97.0.1"));
  EXPECT_TRUE(May(list, "http://localhost:9", "127.0.0.1"));
  EXPECT_TRUE(May(list, "http://localhost:9", "::1"));
  EXPECT_FALSE(May(list, "http://localhost:9", "10.0.0.1"));
}

TEST(AllowListTest, InvalidPatternsAreRefused) {
  for (const char* bad :
       {"", ":80", "a:0", "a:x", "a:99999", "http://a", "a/b", "*a.org", "a.*", "10.0.0.0/33",
        "10.0.0.0/", "a=b", "a=", "10.0.0.1=10.0.0.1", "1.2.3", "[::1", "::1/129", "a b"}) {
    const auto list = AllowList::Parse({bad});
    EXPECT_TRUE(absl::IsInvalidArgument(list.status())) << bad;
  }
}

}  // namespace
}  // namespace nibble
