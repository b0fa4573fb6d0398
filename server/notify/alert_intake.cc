#include "server/notify/alert_intake.h"

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/controller/log.h"

namespace nibble {
namespace {

constexpr int64_t kTickMs = 1000;

}  // namespace

AlertIntake::AlertIntake(Controller& controller, std::chrono::milliseconds patience)
    : controller_(controller),
      patience_(patience),
      book_(controller.Inspect([&controller](const State& state) {
        return AlertBook(state, controller.clock().NowUnixMs());
      })) {}

absl::Status AlertIntake::Take(const std::string& body) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<ReceivedAlert> received, ParseAlerts(body));
  absl::Status taken;
  std::vector<v1::AlertChanged> changes;
  {
    MutexLock lock(&mutex_);
    if (waiting_ >= kMostWaiting) {
      return absl::UnavailableError(
          absl::StrCat("alerts: ", waiting_, " requests wait for the store; try again"));
    }
    controller_.Inspect([&](const State& state) {
      mutex_.AssertHeld();
      const int64_t now = controller_.clock().NowUnixMs();
      taken = book_.Take(received, state, now);
      changes = book_.Changes(state, now);
    });
    if (changes.empty()) return taken;
    ++waiting_;
  }
  const auto durable = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> stored = durable->get_future();
  controller_.requests().RecordAlerts(
      changes, [durable](const absl::Status& status) { durable->set_value(status); });
  const bool answered = stored.wait_for(patience_) == std::future_status::ready;
  MutexLock lock(&mutex_);
  --waiting_;
  if (!answered) {
    return absl::UnavailableError(
        absl::StrCat("alerts: the store has not answered for ", patience_.count(), " ms"));
  }
  NIBBLE_RETURN_IF_ERROR(stored.get());
  return taken;
}

void AlertIntake::Tick() {
  std::vector<v1::AlertChanged> changes;
  {
    MutexLock lock(&mutex_);
    const int64_t now_ms = controller_.clock().SteadyMs();
    if (now_ms < next_tick_ms_ || !controller_.Health().ok()) return;
    next_tick_ms_ = now_ms + kTickMs;
    changes = controller_.Inspect([this](const State& state) {
      mutex_.AssertHeld();
      return book_.Changes(state, controller_.clock().NowUnixMs());
    });
  }
  if (changes.empty()) return;
  controller_.requests().RecordAlerts(changes, [](const absl::Status& status) {
    if (status.ok()) return;
    Log(LogLevel::kWarning,
        absl::StrCat("alerts that ended are not stored; trying again: ", status.message()));
  });
}

}  // namespace nibble
