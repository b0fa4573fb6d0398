#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "job/choices.h"
#include "server/state/apply.h"
#include "server/state/bounds.h"
#include "server/state/limits.h"

namespace nibble::apply {
namespace {

bool IsEventName(const std::string& name) {
  const auto choices = ChoicesOf<NotifyEvent>();
  return std::any_of(choices.begin(), choices.end(),
                     [&name](const Choice<NotifyEvent>& choice) { return choice.name == name; });
}

}  // namespace

absl::Status SetTargets(const google::protobuf::RepeatedPtrField<v1::NotifyTarget>& targets,
                        v1::JobRecord& job) {
  for (const v1::NotifyTarget& given : targets) {
    if (given.url().empty()) return absl::InvalidArgumentError("notify.url: is empty");
    v1::NotifyTarget& target = *job.add_notify();
    target.set_url(given.url());
    for (const std::string& name : given.on()) {
      if (!IsEventName(name)) {
        return absl::InvalidArgumentError(
            absl::StrCat("notify.on: '", Clip(name, kMaxNameBytes), "' is no event"));
      }
      target.add_on(name);
    }
  }
  return absl::OkStatus();
}

absl::Status Apply(const v1::PostsSettled& fact, const Stamp& stamp, Draft& draft) {
  absl::StatusOr<v1::JobRecord*> job = EditJob(draft, fact.job());
  if (!job.ok()) return job.status();
  absl::Status status = CheckRange("target", fact.target(), 0, (*job)->notify_size() - 1);
  if (!status.ok()) return status;
  v1::NotifyTarget& target = *(*job)->mutable_notify(fact.target());
  status = CheckRange("through_event", fact.through_event(), target.settled_event() + 1,
                      target.wanted_event());
  if (status.ok()) status = CheckRange("delivered", fact.delivered(), 0, fact.through_event());
  if (status.ok()) status = CheckRange("given_up", fact.given_up(), 0, fact.through_event());
  if (!status.ok()) return status;
  target.set_settled_event(fact.through_event());
  target.set_delivered(target.delivered() + fact.delivered());
  target.set_given_up(target.given_up() + fact.given_up());
  target.set_problem(fact.problem());
  target.set_settled_unix_ms(stamp.time_unix_ms);
  return absl::OkStatus();
}

}  // namespace nibble::apply
