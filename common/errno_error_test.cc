#include "common/errno_error.h"

#include <cerrno>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using absl::StatusCode;

TEST(ErrnoErrorTest, TheCodeIsThatOfTheErrno) {
  const struct {
    int error;
    StatusCode code;
  } kCases[] = {
      {ENOSPC, StatusCode::kResourceExhausted},
      {EDQUOT, StatusCode::kResourceExhausted},
      {EFBIG, StatusCode::kResourceExhausted},
      {EMFILE, StatusCode::kResourceExhausted},
      {ENOENT, StatusCode::kNotFound},
      {EACCES, StatusCode::kPermissionDenied},
      {EROFS, StatusCode::kPermissionDenied},
      {EEXIST, StatusCode::kAlreadyExists},
      {ENOTDIR, StatusCode::kFailedPrecondition},
      {EIO, StatusCode::kInternal},
      {12345, StatusCode::kInternal},
      {EAGAIN, StatusCode::kUnavailable},
  };
  for (const auto& [error, code] : kCases) {
    const absl::Status status = ErrnoError(error, "writing", "/a/b");
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith("writing /a/b: "));
  }
  EXPECT_EQ(ErrnoError(0, "writing").code(), StatusCode::kInternal);
  EXPECT_THAT(std::string(ErrnoError(ENOMEM, "fork").message()), testing::StartsWith("fork: "));
}

}  // namespace
}  // namespace nibble
