#include "tests/cluster/clerk.h"

#include <chrono>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

constexpr char kName[] = "of-the-clerk";
constexpr std::chrono::milliseconds kPause(50);

}  // namespace

// Its jobs need more slots than there are, so that they take none from others.
Clerk::Clerk(ClusterBed& bed)
    : bed_(bed),
      stub_(bed.address()),
      spec_(TinyJob{.name = kName, .ranks = 64, .batch = 64}.Yaml(bed.corpus())),
      thread_([this] { Run(); }) {}

Clerk::Acknowledged Clerk::Known() const {
  MutexLock lock(&mutex_);
  return known_;
}

void Clerk::Stop() {
  end_ = true;
  if (!thread_.joinable()) return;
  thread_.join();
  EXPECT_EQ(failure_, "");
}

template <class Request, class Response>
bool Clerk::Call(const Rpc<Request, Response>& rpc, const Request& request, Response* response) {
  const auto deadline = std::chrono::system_clock::now() + kPatience;
  while (true) {
    const absl::Status status =
        stub_.Call(rpc, request, response, {.waits_for_ready = true, .deadline = deadline});
    if (status.ok()) return true;
    if (!absl::IsUnavailable(status)) {
      failure_ = absl::StrCat(rpc.method, ": ", status.ToString());
      return false;
    }
    (void)AwaitAnyEnd({}, kPause);
  }
}

void Clerk::Run() {
  for (int64_t number = 1; !end_; ++number) {
    const std::string name = absl::StrCat(kName, "-", number);
    v1::SubmitJobRequest submit;
    submit.set_request_id(absl::StrCat("submit-", name));
    submit.set_spec_yaml(absl::StrReplaceAll(spec_, {{kName, name}}));
    v1::SubmitJobResponse submitted;
    if (!Call(kSubmitJob, submit, &submitted)) return;
    {
      MutexLock lock(&mutex_);
      known_.submitted[submitted.job().id()] = name;
    }
    v1::KillJobRequest kill = OfJob<v1::KillJobRequest>(submitted.job().id());
    kill.set_request_id(absl::StrCat("kill-", name));
    v1::KillJobResponse killed;
    if (!Call(kKillJob, kill, &killed)) return;
    {
      MutexLock lock(&mutex_);
      known_.ended[submitted.job().id()] = name;
    }
    (void)AwaitAnyEnd({}, kPause);
  }
}

void Clerk::ExpectKept(const Acknowledged& acknowledged) {
  std::map<std::string, int> times;  // by name
  v1::ListJobsRequest list;
  list.mutable_page()->set_size(1000);
  do {
    const v1::ListJobsResponse page = bed_.Ask(kListJobs, list);
    for (const v1::Job& one : page.jobs()) {
      ++times[one.name()];
      if (acknowledged.ended.contains(one.id())) {
        EXPECT_EQ(one.state(), v1::JOB_STATE_CANCELLED) << one.ShortDebugString();
      }
      const auto known = acknowledged.submitted.find(one.id());
      if (known != acknowledged.submitted.end()) {
        EXPECT_EQ(one.name(), known->second);
      }
    }
    list.mutable_page()->set_token(page.next_token());
  } while (!list.page().token().empty());
  for (const auto& [id, name] : acknowledged.submitted) {
    EXPECT_EQ(times[name], 1) << id << " " << name;
  }
}

int64_t Clerk::ExpectNothingLost(const std::string& job) {
  Stop();
  const Acknowledged known = Known();
  ExpectKept(known);
  std::map<int64_t, std::string> events;
  for (const v1::JobEvent& event : bed_.Events(job)) {
    events[event.number()] = event.SerializeAsString();
  }
  const JobWatch::Seen seen = bed_.watch().Of(job);
  for (const auto& [number, event] : seen.events) {
    EXPECT_EQ(events[number], event.SerializeAsString()) << event.ShortDebugString();
  }
  return known.changes();
}

}  // namespace nibble
