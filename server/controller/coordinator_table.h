// The coordinator's metrics.
//
// Thread-safety: const.
#ifndef NIBBLE_SERVER_CONTROLLER_COORDINATOR_TABLE_H_
#define NIBBLE_SERVER_CONTROLLER_COORDINATOR_TABLE_H_

#include "common/metrics/metric_table.h"
#include "common/metrics/program_table.h"
#include "server/store/store.h"

namespace nibble {

struct CoordinatorTable : ProgramTable {
  // Jobs.
  const MetricSpec& jobs = Gauge("nibble_jobs", "jobs", {"queue", "state"},
                                 "Jobs known to the coordinator, including finished ones");
  const MetricSpec& queue_wait =
      Histogram("nibble_job_queue_wait_seconds", "seconds", {"queue"},
                "Time from queueing a job to launching its attempt", WaitingSeconds());
  const MetricSpec& facts = Counter("nibble_facts_total", "updates", {"fact"},
                                    "Changes of the state, by their field name in the journal");
  const MetricSpec& attempts_ended =
      Counter("nibble_attempts_ended_total", "attempts", {"outcome"}, "Ended attempts");
  const MetricSpec& restarts =
      Counter("nibble_job_restarts_total", "attempts", {"reason"},
              "Attempts launched after another one, by the outcome of that one");
  const MetricSpec& recipe_changes =
      Counter("nibble_recipe_changes_total", "changes", {}, "Accepted changes of recipes");
  const MetricSpec& recipes_in_force =
      Counter("nibble_recipe_revisions_in_force_total", "revisions", {},
              "Recipe revisions that have taken effect on ranks");
  const MetricSpec& checkpoints = Counter("nibble_checkpoints_total", "checkpoints", {"event"},
                                          "Checkpoints committed, found damaged, and deleted");
  const MetricSpec& checkpoint_bytes =
      Counter("nibble_checkpoint_stored_bytes_total", "bytes", {},
              "Bytes of checkpoint shards made durable; replicas are not counted");
  const MetricSpec& checkpoint_time =
      Gauge("nibble_job_checkpoint_time_seconds", "seconds", {"job"},
            "Commit of the newest checkpoint of a running job that writes checkpoints while it "
            "trains, or the start of training after it if that was later, in seconds since 1970");
  const MetricSpec& copies_missing = Gauge(
      "nibble_checkpoint_copies_missing", "shards", {},
      "Copies of checkpoint shards that workers were asked to make and that do not exist yet");
  const MetricSpec& uploads_failing =
      Gauge("nibble_checkpoint_uploads_failing_jobs", "jobs", {},
            "Jobs whose last upload to object storage has failed; with --object-store");
  const MetricSpec& posts =
      Counter("nibble_notifications_total", "events", {"result"},
              "Job events posted to URLs of `notify`: delivered, given_up, or failed and retried");
  const MetricSpec& posts_waiting = Gauge("nibble_notifications_waiting_jobs", "jobs", {},
                                          "Jobs with events that are not posted yet");

  // Slots and the scheduler.
  const MetricSpec& slots = Gauge("nibble_slots", "slots", {}, "Slots of present workers");
  const MetricSpec& slots_used =
      Gauge("nibble_slots_used", "slots", {}, "Slots used by live attempts");
  const MetricSpec& plan_seconds =
      Histogram("nibble_scheduling_pass_seconds", "seconds", {},
                "Duration of one pass of the scheduler", ServiceSeconds());
  const MetricSpec& decisions = Counter("nibble_scheduling_decisions_total", "decisions",
                                        {"action"}, "Decisions of the scheduler");
  const MetricSpec& waiting =
      Gauge("nibble_jobs_waiting", "jobs", {"for"},
            "Jobs that the latest pass of the scheduler left pending, by what they wait for");

  // Workers.
  const MetricSpec& workers =
      Gauge("nibble_workers", "workers", {"lease", "mode"}, "Workers known to the coordinator");
  const MetricSpec& lease_expiries =
      Counter("nibble_lease_expiries_total", "leases", {}, "Expired leases: workers lost");
  const MetricSpec& streams =
      Gauge("nibble_worker_streams", "streams", {}, "Open streams of worker daemons");
  const MetricSpec& reports = Counter("nibble_worker_reports_total", "reports", {"code"},
                                      "Reports of worker daemons, by the status of handling them");
  const MetricSpec& report_seconds = Histogram(
      "nibble_worker_report_seconds", "seconds", {},
      "Time from receiving a report until its consequences are durable", ServiceSeconds());

  // Calls.
  const MetricSpec& rpcs =
      Counter("nibble_rpcs_total", "calls", {"method", "code"}, "Finished RPCs");
  const MetricSpec& rpc_seconds = Histogram("nibble_rpc_seconds", "seconds", {"method"},
                                            "Duration of unary RPCs, but those that ended with "
                                            "RESOURCE_EXHAUSTED",
                                            ServiceSeconds());
  const MetricSpec& audited =
      Counter("nibble_audited_calls_total", "calls", {"outcome"},
              "Changes by users and connections of workers that were done or failed, and calls of "
              "any kind that were refused because of who the caller is");
  const MetricSpec& audit_lost = Counter("nibble_audit_lost_lines_total", "lines", {},
                                         "Lines that could not be written to the audit log");
  const MetricSpec& watches = Gauge("nibble_watches_open", "watches", {}, "Open watches of jobs");
  const MetricSpec& waits = Gauge("nibble_waits_open", "waits", {}, "Open waits for jobs");

  // The store.
  const MetricSpec& store_healthy =
      Gauge("nibble_store_healthy", "", {}, "Health of the store: 1, or 0 once a write has failed");
  const MetricSpec& commits =
      Counter("nibble_store_commits_total", "batches", {}, "Durable batches");
  const MetricSpec& commits_failed = Counter("nibble_store_failed_commits_total", "batches", {},
                                             "Batches that were accepted and then failed");
  const MetricSpec& commits_refused = Counter("nibble_store_refused_commits_total", "batches", {},
                                              "Batches that were not accepted");
  const MetricSpec& committed_bytes =
      Counter("nibble_store_committed_bytes_total", "bytes", {}, "Bytes of durable batches");
  const MetricSpec& commits_waiting = Gauge("nibble_store_waiting_commits", "batches", {},
                                            "Batches waiting for their write to the disk");
  const MetricSpec& waiting_bytes = Gauge("nibble_store_waiting_bytes", "bytes", {},
                                          "Bytes of batches waiting for their write to the disk");
  const MetricSpec& write_batches =
      Histogram("nibble_store_write_batches", "batches", {}, "Batches that share one synced write",
                StoreMetrics().batches_per_write.bounds);
  const MetricSpec& write_seconds = Histogram("nibble_store_write_seconds", "seconds", {},
                                              "Duration of one synced write, including its fsync",
                                              StoreMetrics().write_seconds.bounds);
  const MetricSpec& journal_last =
      Gauge("nibble_journal_sequence", "", {}, "Sequence number of the newest durable update");
  const MetricSpec& journal_first = Gauge("nibble_journal_first_sequence", "", {},
                                          "Sequence number of the oldest update that is kept");
  const MetricSpec& recovery =
      Gauge("nibble_recovery_seconds", "seconds", {"part"},
            "Time that the start took to open the store and to load the state");
  const MetricSpec& backups = Counter("nibble_backups_total", "backups", {"result"},
                                      "Backups of the store: made, or failed");
  const MetricSpec& backup_time =
      Gauge("nibble_backup_time_seconds", "seconds", {},
            "Begin of the newest backup of the store, in seconds since 1970");
  const MetricSpec& backup_interval =
      Gauge("nibble_backup_interval_seconds", "seconds", {},
            "Time between backups of the store; 0: they are made only on request");
  const MetricSpec& backup_seconds =
      Gauge("nibble_backup_duration_seconds", "seconds", {},
            "Time that the newest backup took, including its verification");
  const MetricSpec& backup_bytes =
      Gauge("nibble_backup_bytes", "bytes", {},
            "Size of the newest backup, including files that it shares with earlier ones");
  const MetricSpec& entities =
      Gauge("nibble_entities", "entities", {"kind"}, "Entities of the state in memory");
  const MetricSpec& entity_bytes = Gauge(
      "nibble_entity_bytes", "bytes", {"kind"},
      "Estimated serialised size of the entities: their number times the mean of measured sizes");
};

// One per program.
const CoordinatorTable& CoordinatorRows();

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_COORDINATOR_TABLE_H_
