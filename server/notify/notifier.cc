#include "server/notify/notifier.h"

#include <signal.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/counted.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "server/controller/log.h"
#include "server/notify/post_plan.h"

namespace nibble {
namespace {

constexpr size_t kMostSecretBytes = 4096;

// Writing to a TLS connection that the peer has closed raises SIGPIPE.
void BlockSigpipe() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

PostResult ResultOf(const absl::StatusOr<int>& code) {
  using Kind = PostResult::Kind;
  if (absl::IsPermissionDenied(code.status())) {
    return {Kind::kRefused, std::string(code.status().message())};
  }
  if (!code.ok()) return {Kind::kFailed, std::string(code.status().message())};
  if (*code < 300) return {Kind::kDelivered, ""};
  if (*code < 400) {
    return {Kind::kRefused, absl::StrCat("it answered ", *code, "; redirects are not followed")};
  }
  return {Kind::kFailed, absl::StrCat("it answered ", *code)};
}

}  // namespace

Notifier::Notifier(Controller& controller, Options options)
    : controller_(controller), options_(std::move(options)), plan_(options_.plan) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Run(); });
}

Notifier::~Notifier() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  cancel_.Set();
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return storing_ == 0; });
}

void Notifier::Tick() {
  const int64_t now_ms = controller_.clock().SteadyMs();
  const auto [sequence, any] = controller_.Inspect([](const State& state) {
    return std::pair(state.sequence(), !state.index().unsettled().empty());
  });
  std::lock_guard lock(mutex_);
  if (any && (sequence != looked_at_ || now_ms >= wait_until_ms_)) due_ = true;
  if (due_) changed_.notify_one();
}

PostPlan::Turn Notifier::NextTurn() {
  // Without a working store, events could not be settled and would be posted again and again.
  if (!controller_.Health().ok()) return {};
  return controller_.Inspect([this](const State& state) {
    PostPlan::Turn turn = plan_.Next(state, controller_.clock().SteadyMs());
    looked_at_ = state.sequence();
    wait_until_ms_ = turn.wait_until_ms;
    return turn;
  });
}

void Notifier::Run() {
  BlockSigpipe();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return due_ || ending_; });
    if (ending_) return;
    const PostPlan::Turn turn = NextTurn();
    // There may be another post, for another thread.
    due_ = turn.post.has_value();
    lock.unlock();
    if (turn.post) changed_.notify_one();
    for (const v1::PostsSettled& settled : turn.given_up) {
      Log(LogLevel::kWarning,
          absl::StrCat("job ", settled.job(), ": ", Counted(settled.given_up(), "event"),
                       " for notify[", settled.target(), "] given up: ", settled.problem()));
    }
    if (!turn.given_up.empty()) Store(turn.given_up);
    PostResult result;
    if (turn.post) result = Send(*turn.post);
    lock.lock();
    if (!turn.post) continue;
    const PostPlan::End end = plan_.Ended(*turn.post, result, controller_.clock().SteadyMs());
    due_ = true;
    if (ending_ && result.kind != PostResult::Kind::kDelivered) return;
    lock.unlock();
    if (result.kind != PostResult::Kind::kDelivered) {
      const bool again = result.kind == PostResult::Kind::kFailed;
      if (again) controller_.metrics().Posted("failed", 1);
      if (end.first_failure || !again) {
        Log(LogLevel::kWarning,
            absl::StrCat("posting event ", turn.post->event.number(), " of job ",
                         turn.post->event.job(), " to ", turn.post->origin, ": ", result.problem,
                         again ? "; it is tried again" : "; it is given up"));
      }
    }
    if (end.settled) Store({*end.settled});
    lock.lock();
  }
}

PostResult Notifier::Send(const PlannedPost& planned) const {
  const absl::StatusOr<NotifyUrl> url = ParseNotifyUrl(planned.url);
  if (!url.ok()) return {PostResult::Kind::kRefused, std::string(url.status().message())};
  if (const absl::Status may = options_.allow.MayPost(*url); !may.ok()) {
    return {PostResult::Kind::kRefused, std::string(may.message())};
  }
  v1::DescribeJobRequest request;
  request.set_job(planned.event.job());
  const absl::StatusOr<v1::DescribeJobResponse> job = controller_.Read(request);
  if (!job.ok()) return {PostResult::Kind::kRefused, std::string(job.status().message())};
  const std::string cluster =
      controller_.Inspect([](const State& state) { return state.cluster(); });
  HttpPost post = {
      .url = *url,
      .headers = {{"Content-Type", "application/json"}, {"User-Agent", "nibble-coordinator"}},
      .body = PostBody(cluster, job->job(), planned.event),
      .limit = options_.limit,
      .may_connect = [&](const IpAddress& address) {
        return options_.allow.MayConnect(*url, address);
      }};
  if (!options_.secret.empty()) {
    post.headers.emplace_back("X-Nibble-Signature", PostSignature(options_.secret, post.body));
  }
  return ResultOf(PostHttp(post, cancel_));
}

void Notifier::Store(std::vector<v1::PostsSettled> settled) {
  for (const v1::PostsSettled& one : settled) {
    if (one.delivered() > 0) controller_.metrics().Posted("delivered", one.delivered());
    if (one.given_up() > 0) controller_.metrics().Posted("given_up", one.given_up());
  }
  {
    std::lock_guard lock(mutex_);
    ++storing_;
  }
  controller_.RecordPosts(settled, [this, settled](const absl::Status& status) {
    // All under the lock: the destructor waits for storing_ to be 0.
    std::lock_guard lock(mutex_);
    --storing_;
    if (!status.ok()) {
      Log(LogLevel::kWarning, absl::StrCat("what was posted is not stored: ", status.message()));
      for (const v1::PostsSettled& one : settled) plan_.NotStored(one);
    }
    changed_.notify_all();
  });
}

absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("--notify-secret-file: cannot read ", path));
  std::string secret(kMostSecretBytes + 1, '\0');
  file.read(secret.data(), static_cast<std::streamsize>(secret.size()));
  secret.resize(static_cast<size_t>(file.gcount()));
  while (secret.ends_with('\n') || secret.ends_with('\r')) secret.pop_back();
  if (!secret.empty() && secret.size() <= kMostSecretBytes) return secret;
  return absl::InvalidArgumentError(absl::StrCat("--notify-secret-file: ", path, " has ",
                                                 secret.empty() ? "no" : "more than 4096",
                                                 " bytes; allowed: 1 to 4096"));
}

}  // namespace nibble
