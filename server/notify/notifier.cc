#include "server/notify/notifier.h"

#include <signal.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/counted.h"
#include "common/errno_error.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "server/controller/log.h"
#include "server/notify/post_plan.h"

namespace nibble {
namespace {

constexpr size_t kMaxSecretBytes = 4096;

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
    return {Kind::kRefused,
            absl::StrCat("the receiver answered ", *code, "; redirects are not followed")};
  }
  return {Kind::kFailed, absl::StrCat("the receiver answered ", *code)};
}

}  // namespace

Notifier::Notifier(Controller& controller, Options options)
    : controller_(controller), options_(std::move(options)), plan_(options_.plan) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Run(); });
}

Notifier::~Notifier() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
  }
  cancel_.Set();
  changed_.SignalAll();
  for (std::thread& thread : threads_) thread.join();
  MutexLock lock(&mutex_);
  while (storing_ > 0) changed_.Wait(&mutex_);
}

void Notifier::Tick() {
  const int64_t now_ms = controller_.clock().SteadyMs();
  const auto [sequence, any] = controller_.Inspect([](const State& state) {
    return std::pair(state.sequence(), !state.index().unsettled().empty());
  });
  MutexLock lock(&mutex_);
  if (any && (sequence != planned_sequence_ || now_ms >= wait_until_ms_)) due_ = true;
  if (due_) changed_.Signal();
}

PostPlan::Turn Notifier::NextTurn() {
  // Without a working store, events could not be settled and would be posted again and again.
  if (!controller_.Health().ok()) return {};
  return controller_.Inspect([this](const State& state) {
    mutex_.AssertHeld();
    PostPlan::Turn turn = plan_.Next(state, controller_.clock().SteadyMs());
    planned_sequence_ = state.sequence();
    wait_until_ms_ = turn.wait_until_ms;
    return turn;
  });
}

void Notifier::Run() {
  BlockSigpipe();
  mutex_.Lock();
  while (true) {
    while (!due_ && !ending_) changed_.Wait(&mutex_);
    if (ending_) break;
    const PostPlan::Turn turn = NextTurn();
    // There may be another post, for another thread.
    due_ = turn.post.has_value();
    mutex_.Unlock();
    if (turn.post) changed_.Signal();
    for (const v1::PostsSettled& settled : turn.given_up) {
      Log(LogLevel::kWarning,
          absl::StrCat("job ", settled.job(), ": ", Counted(settled.given_up(), "event"),
                       " for notify[", settled.target(), "] given up: ", settled.problem()));
    }
    if (!turn.given_up.empty()) Store(turn.given_up);
    PostResult result;
    if (turn.post) result = Send(*turn.post);
    mutex_.Lock();
    if (!turn.post) continue;
    const PostPlan::End end = plan_.Ended(*turn.post, result, controller_.clock().SteadyMs());
    due_ = true;
    if (ending_ && result.kind != PostResult::Kind::kDelivered) break;
    mutex_.Unlock();
    LogFailure(*turn.post, result, end.first_failure);
    if (end.settled) Store({*end.settled});
    mutex_.Lock();
  }
  mutex_.Unlock();
}

void Notifier::LogFailure(const PlannedPost& post, const PostResult& result, bool first_failure) {
  if (result.kind == PostResult::Kind::kDelivered) return;
  const bool retried = result.kind == PostResult::Kind::kFailed;
  if (retried) controller_.metrics().Posted("failed", 1);
  if (retried && !first_failure) return;
  Log(LogLevel::kWarning, absl::StrCat("posting event ", post.event.number(), " of job ",
                                       post.event.job(), " to ", post.origin, ": ", result.problem,
                                       retried ? "; it will be retried" : "; it is given up"));
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

void Notifier::Store(const std::vector<v1::PostsSettled>& settled) {
  for (const v1::PostsSettled& one : settled) {
    if (one.delivered() > 0) controller_.metrics().Posted("delivered", one.delivered());
    if (one.given_up() > 0) controller_.metrics().Posted("given_up", one.given_up());
  }
  {
    MutexLock lock(&mutex_);
    ++storing_;
  }
  controller_.requests().RecordPosts(settled, [this, settled](const absl::Status& status) {
    if (!status.ok()) {
      Log(LogLevel::kWarning,
          absl::StrCat("results of posts are not stored; their events will be posted again: ",
                       status.message()));
    }
    // All under the lock: the destructor waits for storing_ to be 0.
    MutexLock lock(&mutex_);
    --storing_;
    if (!status.ok()) {
      for (const v1::PostsSettled& one : settled) plan_.NotStored(one);
    }
    changed_.SignalAll();
  });
}

absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoError(errno, "--notify-secret-file: opening", path);
  std::string secret(kMaxSecretBytes + 1, '\0');
  file.read(secret.data(), static_cast<std::streamsize>(secret.size()));
  if (file.bad()) return ErrnoError(errno, "--notify-secret-file: reading", path);
  secret.resize(static_cast<size_t>(file.gcount()));
  while (secret.ends_with('\n') || secret.ends_with('\r')) secret.pop_back();
  if (!secret.empty() && secret.size() <= kMaxSecretBytes) return secret;
  return absl::InvalidArgumentError(absl::StrCat("--notify-secret-file: ", path, " has ",
                                                 secret.empty() ? "no" : "more than 4096",
                                                 " bytes; allowed: 1 to 4096"));
}

}  // namespace nibble
