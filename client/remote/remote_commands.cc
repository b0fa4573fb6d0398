#include "client/remote/remote_commands.h"

#include "client/local/noun.h"
#include "client/remote/job_change_verbs.h"
#include "client/remote/job_follow_verbs.h"
#include "client/remote/job_read_verbs.h"
#include "client/remote/job_submit_verbs.h"
#include "client/remote/orphan_verbs.h"
#include "client/remote/queue_verbs.h"
#include "client/remote/recipe_verbs.h"
#include "client/remote/worker_verbs.h"

namespace nibble {

void AddRemoteCommands(CLI::App& app, int& exit_code) {
  CLI::App* const job = NounOf(app, "job", "Jobs of a cluster");
  AddJobSubmitVerbs(job, exit_code);
  AddJobReadVerbs(job, exit_code);
  AddJobFollowVerbs(job, exit_code);
  AddJobChangeVerbs(job, exit_code);
  AddRecipeNoun(app, exit_code);
  AddWorkerNoun(app, exit_code);
  AddQueueNoun(app, exit_code);
  AddOrphanVerbs(NounOf(app, "checkpoint", "Checkpoints of a cluster"), exit_code);
}

}  // namespace nibble
