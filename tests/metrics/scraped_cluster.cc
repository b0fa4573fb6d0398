#include "tests/metrics/scraped_cluster.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cluster/local_processes.h"
#include "common/process/spawn.h"
#include "tests/processes/processes.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

}  // namespace

ScrapedCluster::ScrapedCluster(ClusterBed::Options options)
    : workers_(options.workers), bed_(WithMetrics(std::move(options))) {
  auto started = PrometheusProcess::Start(absl::StrCat(kDeploy, "/prometheus"), http_,
                                          bed_.root() + "/prometheus");
  EXPECT_TRUE(started.ok()) << started.status();
  if (started.ok()) prometheus_ = std::make_unique<PrometheusProcess>(*std::move(started));
}

ScrapedCluster::~ScrapedCluster() {
  if (card_worker_.pid > 0) (void)EndProcess(card_worker_, std::chrono::seconds(10));
}

ClusterBed::Options ScrapedCluster::WithMetrics(ClusterBed::Options options) const {
  for (const std::string& flag : {std::string("--http"), http_, std::string("--accept-alerts"),
                                  std::string("--notify-allow"), unreachable_}) {
    options.coordinator_flags.push_back(flag);
  }
  for (const char* const flag : {"--peak-flops", "1e12"}) options.worker_flags.emplace_back(flag);
  return options;
}

std::string ScrapedCluster::LocalAddress() {
  return absl::StrCat("127.0.0.1:", ChooseFreePort().value());
}

void ScrapedCluster::Await(const std::string& expression) {
  EXPECT_TRUE(Eventually([&] { return prometheus_->HasData(expression).ok(); }))
      << expression << "\n"
      << prometheus_->Log();
}

void ScrapedCluster::AwaitScrapes() {
  Await(absl::StrCat("count(up == 1) == ", workers_ + 1 + (card_worker_.pid > 0 ? 1 : 0)));
}

std::vector<json> ScrapedCluster::Firing(const std::string& alert) const {
  std::vector<json> firing;
  const auto rules = prometheus_->Rules();
  const auto rule = rules.find(alert);
  if (rule == rules.end()) return firing;
  for (const json& one : rule->second.at("alerts")) {
    if (one.at("state") == "firing") firing.push_back(one.at("labels"));
  }
  return firing;
}

bool ScrapedCluster::Fires(const std::string& alert, const std::string& of) const {
  const std::vector<json> firing = Firing(alert);
  return std::any_of(firing.begin(), firing.end(), [&of](const json& labels) {
    return absl::StrContains(labels.dump(), absl::StrCat("\"", of, "\""));
  });
}

void ScrapedCluster::AwaitResolved(const std::string& alert, const std::string& of) {
  EXPECT_TRUE(Eventually([&] { return !Fires(alert, of); })) << alert << " of " << of;
}

void ScrapedCluster::AwaitFiring(const std::string& alert, const std::string& of) {
  EXPECT_TRUE(Eventually([&] { return Fires(alert, of); })) << alert << " of " << of;
}

std::string ScrapedCluster::IdleWorker() {
  std::set<std::string> idle;
  for (int number = 1; number <= workers_; ++number) idle.insert(WorkerRole(number));
  for (const ClusterBed::Rank& rank : bed_.LiveRanks()) idle.erase(rank.worker);
  return idle.empty() ? "" : *idle.begin();
}

std::string ScrapedCluster::SubmitWithOptimizer(const std::string& name,
                                                const std::string& optimizer, int precision_every) {
  const TinyJob job = {.name = name,
                       .steps = kEndless,
                       .precision_every = precision_every,
                       .more = "guards: {max_skips: 10000000}\n"};
  return bed_.SubmitSpec(
      absl::StrReplaceAll(job.Yaml(bed_.corpus()), {{"lr: 0.002, warmup_steps: 2", optimizer}}));
}

void ScrapedCluster::StartCardWorker() {
  const fs::path library = bed_.root() + "/driver/libnvidia-ml.so.1";
  fs::create_directories(library.parent_path());
  fs::create_symlink(fs::absolute(BuiltProgram("worker/agent/libfake_nvml.so")), library);
  const auto started =
      StartDetached({.arguments = {TestPrograms().worker, "--coordinator", bed_.address(), "--data",
                                   bed_.root() + "/cards", "--name", "cards", "--device", "cuda",
                                   "--http", LocalAddress(), "--trainer", TestPrograms().trainer},
                     .environment = {{"LD_LIBRARY_PATH", library.parent_path()},
                                     {"TMPDIR", bed_.root() + "/tmp"}},
                     .log_path = bed_.root() + "/cards.log"});
  ASSERT_TRUE(started.ok()) << started.status();
  card_worker_ = *started;
}

}  // namespace nibble
