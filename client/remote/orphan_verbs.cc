#include "client/remote/orphan_verbs.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/remote/job_text.h"
#include "client/remote/text.h"
#include "client/remote/verb.h"

namespace nibble {
namespace {

using Stub = CoordinatorClient::Stub;

struct Flags {
  RemoteFlags remote;
  std::string job, worker, reason;
  bool dry_run = false;
};

std::string StepText(int64_t step) { return step < 0 ? "-" : absl::StrCat(step); }

std::string StateText(const v1::OrphanHolding& holding) {
  std::string text = holding.running() ? "ranks run" : "stored";
  if (!holding.spec_known()) text += ", no spec";
  if (holding.removal_ordered()) text += ", to be removed";
  return text;
}

absl::StatusOr<int> Orphans(Session& session, const Flags&) {
  const absl::StatusOr<v1::ListOrphansResponse> all = session.CallAllPages(&Stub::ListOrphans);
  if (!all.ok()) return all.status();
  TextTable table({"JOB", "WORKER", "STATE", "ATTEMPT", "SHARDS", "SIZE", "NEWEST STEP",
                   "WHOLE STEP", "FOR", "STORE"});
  for (const v1::OrphanJob& job : all->orphans()) {
    for (const v1::OrphanHolding& holding : job.holdings()) {
      table.Add({job.job(), holding.worker(), StateText(holding), absl::StrCat(holding.attempt()),
                 absl::StrCat(holding.shards()), BytesText(holding.bytes()),
                 StepText(holding.newest_step()), StepText(job.newest_whole_step()),
                 DurationText(static_cast<double>(holding.since_ms()) / 1000),
                 holding.store().id().empty() ? "-"
                                              : absl::StrCat(holding.store().id().substr(0, 8), "/",
                                                             holding.store().epoch())});
    }
  }
  return session.Finish(*all, table.Text());
}

absl::StatusOr<int> Adopt(Session& session, const Flags& flags) {
  v1::AdoptJobRequest request;
  request.set_job(flags.job);
  request.set_reason(flags.reason);
  request.set_dry_run(flags.dry_run);
  const absl::StatusOr<v1::AdoptJobResponse> adopted = session.Call(&Stub::AdoptJob, request);
  if (!adopted.ok()) return adopted.status();
  std::string text = absl::StrCat(
      flags.job, flags.dry_run ? " would be known again with " : " is known again with ",
      adopted->checkpoints(), adopted->checkpoints() == 1 ? " checkpoint" : " checkpoints");
  if (adopted->incomplete() > 0) {
    absl::StrAppend(&text, "; of ", adopted->incomplete(),
                    " more, shards are on no worker that is present");
  }
  absl::StrAppend(&text, "\n", JobLine(adopted->job()), "\n");
  return session.Finish(*adopted, text);
}

absl::StatusOr<int> Remove(Session& session, const Flags& flags) {
  v1::RemoveOrphanRequest request;
  request.set_job(flags.job);
  request.set_worker(flags.worker);
  request.set_reason(flags.reason);
  const absl::StatusOr<v1::RemoveOrphanResponse> removed =
      session.Call(&Stub::RemoveOrphan, request);
  if (!removed.ok()) return removed.status();
  return session.Finish(
      *removed,
      absl::StrCat(removed->workers(), removed->workers() == 1 ? " worker is" : " workers are",
                   " told to delete what is left of ", flags.job, "\n"));
}

}  // namespace

void AddOrphanVerbs(CLI::App* checkpoint, int& exit_code) {
  RemoteVerb<Flags> orphans(checkpoint, "orphans",
                            "What workers have of jobs that the coordinator does not know");
  orphans.Runs(exit_code, Orphans);
  orphans.app()->footer(
      "After the coordinator's store was lost or replaced. Nothing of it is deleted by itself:\n"
      "`nibble checkpoint adopt JOB` makes it known again, `remove-orphan JOB` deletes it.");

  RemoteVerb<Flags> adopt(checkpoint, "adopt",
                          "Make an orphaned job known again, with its checkpoints");
  adopt.app()
      ->add_option("JOB", adopt->job, "id, as `nibble checkpoint orphans` lists it")
      ->required();
  adopt.app()->add_flag("--dry-run", adopt->dry_run, "Show what would be known; change nothing");
  adopt.app()->add_option("--reason", adopt->reason, "Why, for the job's events");
  adopt.Runs(exit_code, Adopt);
  adopt.app()->footer(
      "It is paused: ranks that still run end with a checkpoint, `nibble job resume JOB`\n"
      "continues from it.");

  RemoteVerb<Flags> remove(checkpoint, "remove-orphan",
                           "Delete what workers have of a job that the coordinator does not know");
  remove.app()
      ->add_option("JOB", remove->job, "id, as `nibble checkpoint orphans` lists it")
      ->required();
  remove.app()->add_option("--worker", remove->worker, "Only what this worker has");
  remove.app()->add_option("--reason", remove->reason, "Why, for the coordinator's journal");
  remove.Runs(exit_code, Remove);
  remove.app()->footer("Only after the coordinator's --orphan-grace; ranks that run are killed.");
}

}  // namespace nibble
