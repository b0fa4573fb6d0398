// The published examples of "Authenticating Requests: Using the Authorization Header (AWS Signature
// Version 4)" of the Amazon S3 API reference.
#include "common/s3/signature.h"

#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble::s3 {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

const Credentials kExample = {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                              ""};

// The authorization header of a request in May 2013.
std::string Authorization(Request request) {
  request.headers["host"] = "examplebucket.s3.amazonaws.com";
  if (request.payload_sha256.empty()) request.payload_sha256 = Sha256("");
  Sign(kExample, "us-east-1", absl::FromUnixSeconds(1369353600), request);
  return request.headers["authorization"];
}

TEST(Signature, OfAGetWithARange) {
  const std::string text =
      Authorization({.method = "GET", .path = "/test.txt", .headers = {{"range", "bytes=0-9"}}});
  EXPECT_THAT(text, HasSubstr("Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
                              "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"));
  EXPECT_THAT(text, EndsWith("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"));
}

TEST(Signature, OfAPutWhosePathIsEncoded) {
  EXPECT_THAT(Authorization({.method = "PUT",
                             .path = "/test$file.text",
                             .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                         {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                             .payload_sha256 = Sha256("Welcome to Amazon S3.")}),
              EndsWith("98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
}

TEST(Signature, OfAQueryWithoutAValue) {
  EXPECT_THAT(Authorization({.method = "GET", .path = "/", .query = {{"lifecycle", ""}}}),
              EndsWith("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
}

TEST(Signature, OfAListing) {
  EXPECT_THAT(
      Authorization({.method = "GET", .path = "/", .query = {{"prefix", "J"}, {"max-keys", "2"}}}),
      EndsWith("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

TEST(Signature, ASessionTokenIsSigned) {
  Request request = {.method = "GET", .path = "/", .headers = {{"host", "h"}}};
  request.payload_sha256 = Sha256("");
  Sign({"a", "b", "token"}, "r", absl::FromUnixSeconds(0), request);
  EXPECT_EQ(request.headers["x-amz-security-token"], "token");
  EXPECT_THAT(request.headers["authorization"], HasSubstr(";x-amz-security-token,Signature="));
}

TEST(Signature, EncodesAsS3Does) {
  EXPECT_EQ(Encode("a b/c+d~e%", true), "a%20b/c%2Bd~e%25");
  EXPECT_EQ(Encode("a/b=\xC3\xA4", false), "a%2Fb%3D%C3%A4");
  EXPECT_EQ(QueryText({{"b", "2 3"}, {"a", ""}}), "a=&b=2%203");
}

}  // namespace
}  // namespace nibble::s3
