// For tests: the coordinator's program with TLS, tokens, JWTs and an audit log, and callers of it.
//
// Ownership: owns the process, its store and all certificates. Thread-safety: none.
#ifndef NIBBLE_TESTS_SECURITY_SECURE_COORDINATOR_H_
#define NIBBLE_TESTS_SECURITY_SECURE_COORDINATOR_H_

#include <openssl/evp.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/files/files_testing.h"
#include "common/identity/credentials.h"
#include "common/identity/testing.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/nibble/v1/access.pb.h"
#include "tests/service/coordinator_process.h"

namespace nibble {

class SecureCoordinator {
 public:
  // Starts it; a test failure if that fails. `valid_s`: of its certificate, from now.
  explicit SecureCoordinator(int64_t valid_s = 3600,
                             const std::vector<std::string>& more_flags = {});
  ~SecureCoordinator();

  CoordinatorProcess& process() { return *process_; }
  const TestAuthority& authority() const { return authority_; }
  const std::string& directory() const { return directory_.path(); }
  std::string Path(const std::string& name) const { return directory_.Path(name); }

  // A new connection with the certificate; by default that of a client.
  std::shared_ptr<grpc::Channel> Connect(const TlsFiles& files) const;
  std::shared_ptr<grpc::Channel> Connect() const { return Connect(client_); }
  const TlsFiles& client_files() const { return client_; }

  // The token of the first operator, which the coordinator has made.
  std::string Bootstrap() const;
  // The text of a new token, by the first operator. 0: valid forever.
  std::string MakeToken(const std::string& name, v1::Role role, int64_t valid_ms = 0,
                        const std::vector<std::string>& projects = {});
  // What another caller gets for making one.
  grpc::Status TryMakeToken(const std::string& caller, const std::string& name, v1::Role role);
  void RevokeToken(const std::string& text);
  // A signed JWT; `forged`: with another key than the coordinator's.
  std::string MakeJwt(const std::string& claims, const std::string& algorithm = "ES256",
                      bool forged = false) const;

  // The page of its metrics.
  std::string Metrics() const;
  // The audit log so far.
  std::vector<nlohmann::json> Audit() const;
  // Whether it has an entry with these values: names and values in turn.
  bool Audited(const std::vector<std::string>& values) const;

 private:
  void Start(const std::vector<std::string>& more_flags);

  const file_testing::TempDirectory directory_;
  const TestAuthority authority_;
  const TlsFiles client_;
  EVP_PKEY* const jwt_key_;
  EVP_PKEY* const other_key_;
  std::unique_ptr<CoordinatorProcess> process_;
};

// A call with a deadline, and a token unless it is empty.
std::unique_ptr<grpc::ClientContext> CallWith(const std::string& token);

}  // namespace nibble

#endif  // NIBBLE_TESTS_SECURITY_SECURE_COORDINATOR_H_
