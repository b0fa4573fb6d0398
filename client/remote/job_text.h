// Jobs, their events and their recipes as text for people.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_JOB_TEXT_H_
#define NIBBLE_CLIENT_REMOTE_JOB_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/recipe.pb.h"

namespace nibble {

struct Recipe;  // recipe/recipe.h

bool IsOver(v1::JobState state);
// The exit code of `watch` and `wait` for a job in this state.
int ExitCodeOfJob(v1::JobState state);

// One line per job, in the given order: of at most 80 columns, which shortens long names and
// reasons, or, `wide`, with every column and nothing shortened.
std::string JobTable(const std::vector<v1::Job>& jobs, int64_t now_unix_ms, bool wide);
// The full description of one job. `recipe`: the one in effect; `loss`: the latest; both may be
// empty, if they are not known.
std::string JobText(const v1::Job& job, int64_t now_unix_ms, const std::string& recipe = "",
                    const std::string& loss = "");
// "train-7 is paused at 120/1000 (12%): lunch": the state of a job on one line.
std::string JobLine(const v1::Job& job);
// "0 of 3 without a new checkpoint; pauses of 1s to 5m00s"
std::string RestartsText(const v1::Job& job);
// "120/1000 (12%)"
std::string StepsText(const v1::Job& job);

std::string EventTable(const std::vector<v1::JobEvent>& events);
// "queued → starting: launched on w1 (coordinator)": without its time.
std::string EventText(const v1::JobEvent& event);
// "w1: ranks 0-3 running"
std::string PlacementText(const v1::Placement& placement);
// "base-1@2000": as `nibble` commands name a checkpoint.
std::string RefText(const v1::CheckpointRef& ref);

// The fields and layer rules of the change; its preset is ignored.
v1::RecipeChange ChangeMessage(const Recipe& change);

// "nvfp4, fprop=bf16, last 8 blocks:fprop=bf16,wgrad=mxfp8"
std::string RecipeText(const v1::Recipe& recipe);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_JOB_TEXT_H_
