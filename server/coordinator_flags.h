// The command line and settings file of nibble-coordinator.
//
// Ownership: values. Thread-safety: none; values.
#ifndef NIBBLE_SERVER_COORDINATOR_FLAGS_H_
#define NIBBLE_SERVER_COORDINATOR_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/identity/credentials.h"
#include "server/access/audit_log.h"
#include "server/access/authenticator.h"
#include "server/controller/controller.h"
#include "server/metrics/coordinator_http.h"
#include "server/service/coordinator_server.h"

namespace nibble {

struct CoordinatorFlags {
  std::string store;
  bool standby = false;  // waits while another process has the store
  ControllerOptions controller;
  ServerOptions server;
  std::string http = kCoordinatorHttp;
  bool http_given = false;
  std::vector<std::string> notify_allow;
  std::string notify_secret_file;
  bool accept_alerts = false;
  std::string alerts_token_file;
  TlsFiles tls;
  Authenticator::Options access;
  AuditLog::Options audit;
  int64_t audit_mib = 64;        // size at which the audit log is rotated
  std::string backup_directory;  // empty: no backups
  double backup_every_minutes = 60;
  int32_t backup_keep = 48;
  int64_t tick_ms = 100;
  int64_t grace_ms = 5000;

  // Callers are authenticated if there is any means of it.
  bool Authenticates() const {
    return tls.given() || !access.bootstrap_file.empty() || !access.jwks_file.empty();
  }
};

// Reads the command line and the settings file that it names. Returns an exit code if the program
// is to end: after --help and the like, or because a flag is wrong.
std::optional<int> ParseCoordinatorFlags(int argc, char** argv, CoordinatorFlags& flags);

}  // namespace nibble

#endif  // NIBBLE_SERVER_COORDINATOR_FLAGS_H_
