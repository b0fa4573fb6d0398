#include "common/identity/peer_name.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(PeerName, EachFormIsReadAndWritten) {
  for (const char* uri : {"nibble://coordinator", "nibble://worker/w-1", "nibble://client/a@b.c"}) {
    const auto peer = ParsePeerUri(uri);
    ASSERT_EQ(peer.status(), absl::OkStatus()) << uri;
    EXPECT_EQ(peer->ToString(), uri);
  }
}

TEST(PeerName, OtherUrisAreRefused) {
  for (const char* uri :
       {"", "nibble://", "nibble://worker", "nibble://worker/", "nibble://worker/../x",
        "nibble://worker/a/b", "nibble://coordinator/x", "nibble://operator/ann",
        "spiffe://lab/worker/w1", "NIBBLE://coordinator", "nibble://worker/w1%2f"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePeerUri(uri).status())) << uri;
  }
}

TEST(PeerName, ACertificateHasOneNameOfOurs) {
  EXPECT_EQ(PeerOfUris({"spiffe://lab/x", "nibble://worker/w1"})->name, "w1");
  EXPECT_THAT(PeerOfUris({"nibble://worker/w1", "nibble://worker/w2"}).status().message(),
              testing::HasSubstr("both"));
  EXPECT_THAT(PeerOfUris({}).status().message(), testing::HasSubstr("nibble cluster certs"));
}

TEST(PeerName, ARefusedNameIsNotRepeatedBecauseItMayBeASecret) {
  const absl::Status refused = CheckIdentityName("name", "a secret!");
  EXPECT_EQ(refused.message(),
            "name: 9 bytes; allowed: 1 to 100 of [A-Za-z0-9._@-], beginning with a letter or "
            "digit");
  EXPECT_TRUE(CheckIdentityName("name", std::string(100, 'a')).ok());
  EXPECT_FALSE(CheckIdentityName("name", std::string(101, 'a')).ok());
}

}  // namespace
}  // namespace nibble
