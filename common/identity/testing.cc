#include "common/identity/testing.h"

#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "common/files/staged_file.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

void WritePem(const std::string& path, const std::string& text) {
  ASSERT_EQ(ReplaceFile(path, text), absl::OkStatus());
  ASSERT_EQ(chmod(path.c_str(), S_IRUSR | S_IWUSR), 0) << path;
}

}  // namespace

TestAuthority::TestAuthority(std::string directory, std::string name)
    : directory_(std::move(directory)), name_(std::move(name)) {
  const int64_t now = time(nullptr);
  auto made = MakeAuthority(name_, {.from = now - 86'400, .until = now + 86'400});
  EXPECT_EQ(made.status(), absl::OkStatus());
  if (made.ok()) authority_ = *std::move(made);
  WritePem(directory_ + "/" + name_ + "-ca.pem", authority_.certificate);
}

TlsFiles TestAuthority::Issue(const std::string& name, const PeerName& peer,
                              int64_t valid_s) const {
  const int64_t now = time(nullptr);
  const auto made =
      IssueCertificate(authority_, peer, {"localhost", "127.0.0.1", "::1"},
                       {.from = std::min(now, now + valid_s) - 3600, .until = now + valid_s});
  EXPECT_EQ(made.status(), absl::OkStatus());
  const TlsFiles files = {.certificate = directory_ + "/" + name + ".pem",
                          .key = directory_ + "/" + name + "-key.pem",
                          .authority = directory_ + "/" + name_ + "-ca.pem"};
  if (made.ok()) {
    WritePem(files.key, made->key);
    WritePem(files.certificate, made->certificate);
  }
  return files;
}

}  // namespace nibble
