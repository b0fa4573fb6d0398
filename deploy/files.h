// The files of this folder that programs write for others, as they were at the build: Prometheus'
// configuration and rules, Grafana's provisioning and dashboards.
//
// Ownership: static storage. Thread-safety: constant.
#ifndef NIBBLE_DEPLOY_FILES_H_
#define NIBBLE_DEPLOY_FILES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace nibble {

struct DeployFile {
  absl::string_view path;  // "prometheus/rules/alerts.yml"
  absl::string_view text;
};

absl::Span<const DeployFile> DeployFiles();

}  // namespace nibble

#endif  // NIBBLE_DEPLOY_FILES_H_
