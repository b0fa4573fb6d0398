#include "server/metrics/targets.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "common/metrics/listen_address.h"

namespace nibble {

std::string ScrapeTargets(const State& state, absl::string_view self) {
  using Json = nlohmann::json;
  Json targets = Json::array();
  const std::string cluster = state.cluster();
  // A daemon may say anything of itself; Prometheus refuses the whole list for one that is none.
  const auto add = [&](absl::string_view text, Json labels) {
    const auto address = ParseListenAddress("http_address", text);
    if (!address.ok() || address->port == 0 || address->any) return;
    labels["cluster"] = cluster;
    targets.push_back({{"targets", {address->ToString()}}, {"labels", std::move(labels)}});
  };
  add(self, {{"role", "coordinator"}});
  for (const auto& [name, worker] : state.tables().workers) {
    add(worker->identity().http_address(), {{"role", "worker"}, {"worker", name}});
  }
  return targets.dump(1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace nibble
