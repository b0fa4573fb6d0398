#include "server/state/decide_gang.h"
#include "server/state/decide_tools.h"

namespace nibble {

MaybeUpdate DecideSettled(const State& state, const std::vector<v1::PostsSettled>& settled,
                          const Caller& caller) {
  v1::Update update = decide::NextUpdate(state, caller);
  for (const v1::PostsSettled& one : settled) {
    const v1::JobRecord* const job = state.FindJob(one.job());
    if (job == nullptr || one.target() >= job->notify_size()) continue;
    if (one.through_event() <= job->notify(one.target()).settled_event()) continue;
    *update.add_facts()->mutable_posts_settled() = one;
  }
  return decide::Checked(state, std::move(update));
}

}  // namespace nibble
