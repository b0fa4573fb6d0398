#include "tests/metrics/prometheus_process.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cluster/local_processes.h"
#include "common/process/spawn.h"
#include "common/status_macros.h"
#include "httplib.h"
#include "tests/processes/processes.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kPrometheus[] = "/usr/bin/prometheus";

// A rule file in which minutes are seconds: in windows, offsets and waits, and in numbers of
// seconds that the time since something is compared with.
std::string InSeconds(const std::string& rules) {
  const std::string minutes =
      std::regex_replace(std::regex_replace(rules, std::regex(R"(\b1h\b)"), "60m"),
                         std::regex(R"(\b(\d+)m\b)"), "$1s");
  std::string scaled;
  const std::regex compared(R"((time\(\) - .*[<>] )(\d+)\b)");
  auto rest = minutes.begin();
  for (std::sregex_iterator match(minutes.begin(), minutes.end(), compared), end; match != end;
       ++match) {
    scaled.append(rest, (*match)[0].first);
    absl::StrAppend(&scaled, match->str(1), std::stoi(match->str(2)) / 60);
    rest = (*match)[0].second;
  }
  return scaled.append(rest, minutes.end());
}

// Copies the file with replacements.
void CopyEdited(const fs::path& from, const fs::path& to,
                const std::vector<std::pair<std::string, std::string>>& edits) {
  fs::create_directories(to.parent_path());
  std::ofstream(to) << absl::StrReplaceAll(TextOf(from), edits);
}

// The field `data` of the answer to a call of the API such as "query".
absl::StatusOr<json> CallApi(const std::string& address, const std::string& method,
                             const httplib::Params& parameters) {
  httplib::Client client("http://" + address);
  client.set_read_timeout(std::chrono::seconds(60));
  const httplib::Result result = client.Get("/api/v1/" + method, parameters, httplib::Headers());
  if (!result) return absl::UnavailableError(httplib::to_string(result.error()));
  const json answer = json::parse(result->body, nullptr, false);
  if (!answer.is_object() || answer.value("status", "") != "success") {
    return absl::InvalidArgumentError(absl::StrCat(result->status, ": ", result->body));
  }
  return answer.at("data");
}

}  // namespace

absl::Status PrometheusHasData(const std::string& address, const std::string& expression) {
  NIBBLE_ASSIGN_OR_RETURN(const json data, CallApi(address, "query", {{"query", expression}}));
  for (const json& series : data.at("result")) {
    if (series.at("value").at(1) != "NaN") return absl::OkStatus();
  }
  return absl::NotFoundError(data.at("result").empty() ? "no series" : "only NaN");
}

std::map<std::string, json> PrometheusRules(const std::string& address) {
  std::map<std::string, json> rules;
  const absl::StatusOr<json> data = CallApi(address, "rules", {});
  if (!data.ok()) return rules;
  for (const json& group : data->at("groups")) {
    for (const json& rule : group.at("rules")) rules[rule.at("name")] = rule;
  }
  return rules;
}

absl::StatusOr<PrometheusProcess> PrometheusProcess::Start(const std::string& deploy,
                                                           const std::string& targets,
                                                           const std::string& directory) {
  if (access(kPrometheus, X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat(kPrometheus, " does not exist: install Debian's package prometheus"));
  }
  const fs::path root = directory;
  CopyEdited(fs::path(deploy) / "prometheus.yml", root / "prometheus.yml",
             {{"15s", "1s"}, {"127.0.0.1:7701", targets}});
  for (const auto& rules : fs::directory_iterator(fs::path(deploy) / "rules")) {
    fs::create_directories(root / "rules");
    std::ofstream(root / "rules" / rules.path().filename()) << InSeconds(TextOf(rules.path()));
  }
  NIBBLE_ASSIGN_OR_RETURN(const int port, ChooseFreePort());
  const std::string address = absl::StrCat("127.0.0.1:", port);
  NIBBLE_ASSIGN_OR_RETURN(
      const ProcessIdentity process,
      StartDetached(
          {.arguments = {kPrometheus, absl::StrCat("--config.file=", directory, "/prometheus.yml"),
                         absl::StrCat("--storage.tsdb.path=", directory, "/data"),
                         absl::StrCat("--web.listen-address=", address)},
           .log_path = directory + "/log"}));
  PrometheusProcess started(directory, address, process);
  const bool ready = Eventually([&] {
    httplib::Client client("http://" + address);
    const httplib::Result result = client.Get("/-/ready");
    return (result && result->status == 200) || !IsAlive(process);
  });
  if (ready && IsAlive(process)) return started;
  return absl::InternalError(absl::StrCat("Prometheus does not start:\n", started.Log()));
}

PrometheusProcess::~PrometheusProcess() {
  if (process_.pid > 0) (void)EndProcess(process_, std::chrono::seconds(10));
}

std::string PrometheusProcess::Log() const { return LogTail(directory_ + "/log"); }

}  // namespace nibble
