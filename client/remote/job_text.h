// Jobs and what happened to them, for people.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_JOB_TEXT_H_
#define NIBBLE_CLIENT_REMOTE_JOB_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/nibble/v1/job.pb.h"

namespace nibble {

bool IsOver(v1::JobState state);
// What `watch` and `wait` tell the shell of a job in this state.
int ExitCodeOfJob(v1::JobState state);

// A line each, newest first.
std::string JobTable(const std::vector<v1::Job>& jobs, int64_t now_unix_ms);
// Everything about one.
std::string JobText(const v1::Job& job, int64_t now_unix_ms);
// "train-7 is paused at 120/1000 (12%): ann: lunch": what a change has come to.
std::string JobLine(const v1::Job& job);
// "0 of 3 without a new checkpoint; pauses of 1s to 5m00s"
std::string RestartsText(const v1::Job& job);
// "120/1000 (12%)"
std::string StepsText(const v1::Job& job);

std::string EventTable(const std::vector<v1::JobEvent>& events);
// "queued → starting: launched on w1, by coordinator": without its time.
std::string EventText(const v1::JobEvent& event);
// "w1: ranks 0-3 running"
std::string PlacementText(const v1::Placement& placement);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_JOB_TEXT_H_
