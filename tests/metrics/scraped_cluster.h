// For tests: a cluster of real processes, and a Prometheus that scrapes it with the rules of
// deploy/prometheus, in which minutes are seconds.
//
// Ownership: the fixture owns both, and its worker with cards. Thread-safety: none.
#ifndef NIBBLE_TESTS_METRICS_SCRAPED_CLUSTER_H_
#define NIBBLE_TESTS_METRICS_SCRAPED_CLUSTER_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"
#include "tests/metrics/prometheus_process.h"

namespace nibble {

class ScrapedCluster : public testing::Test {
 protected:
  static constexpr char kDeploy[] = "deploy";
  static constexpr int64_t kEndless = 10'000'000;  // steps

  ScrapedCluster() : ScrapedCluster({.workers = 4, .slots = 2}) {}
  // The flags that metrics need are added to those of the options.
  explicit ScrapedCluster(ClusterBed::Options options);
  ~ScrapedCluster() override;

  // Waits until the expression has data.
  void Await(const std::string& expression);
  // Waits until all processes are scraped.
  void AwaitScrapes();
  // Waits until the alert fires with this value among its labels.
  void AwaitFiring(const std::string& alert, const std::string& of);
  bool Fires(const std::string& alert, const std::string& of) const;
  // Waits until it does not fire with this value.
  void AwaitResolved(const std::string& alert, const std::string& of);
  // The labels of each firing instance.
  std::vector<nlohmann::json> Firing(const std::string& alert) const;
  // A worker without ranks.
  std::string IdleWorker();
  // Submits a job in whose spec `optimizer` replaces lr and warmup_steps; its guard never gives up.
  std::string SubmitWithOptimizer(const std::string& name, const std::string& optimizer,
                                  int precision_every = 0);
  // Starts a further worker, "cards", whose slots are the cards of worker/agent/fake_nvml.cc.
  void StartCardWorker();

  const std::string http_ = LocalAddress();
  const std::string unreachable_ = LocalAddress();
  const int workers_;
  ClusterBed bed_;
  std::unique_ptr<PrometheusProcess> prometheus_;

 private:
  static std::string LocalAddress();
  ClusterBed::Options WithMetrics(ClusterBed::Options options) const;

  ProcessIdentity card_worker_;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_METRICS_SCRAPED_CLUSTER_H_
