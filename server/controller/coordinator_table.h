// The coordinator's metrics, row by row.
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
  const MetricSpec& jobs =
      Gauge("nibble_jobs", "jobs", {"queue", "state"}, "that are known, finished ones too");
  const MetricSpec& queue_wait =
      Histogram("nibble_job_queue_wait_seconds", "seconds", {"queue"},
                "from being queued to the launch of an attempt", WaitingSeconds());
  const MetricSpec& facts = Counter("nibble_facts_total", "facts", {"fact"},
                                    "that changed the state, by the name they have in the journal");
  const MetricSpec& attempts_ended =
      Counter("nibble_attempts_ended_total", "attempts", {"outcome"}, "that live no longer");
  const MetricSpec& restarts = Counter("nibble_job_restarts_total", "attempts", {"reason"},
                                       "after another, by how that one ended");
  const MetricSpec& recipe_changes =
      Counter("nibble_recipe_changes_total", "changes", {}, "of recipes, accepted");
  const MetricSpec& recipes_in_force = Counter("nibble_recipe_revisions_in_force_total",
                                               "revisions", {}, "that ranks began to run under");
  const MetricSpec& checkpoints =
      Counter("nibble_checkpoints_total", "checkpoints", {"event"}, "committed, damaged, deleted");
  const MetricSpec& checkpoint_bytes = Counter("nibble_checkpoint_stored_bytes_total", "bytes", {},
                                               "of shards that became durable, each counted once");
  const MetricSpec& posts =
      Counter("nibble_notifications_total", "events", {"result"},
              "of jobs, posted to a URL of `notify`: delivered, given_up; failed: tries that are "
              "repeated");
  const MetricSpec& posts_waiting = Gauge("nibble_notifications_waiting_jobs", "jobs", {},
                                          "with events that are still to be posted");

  // Slots and the scheduler.
  const MetricSpec& slots = Gauge("nibble_slots", "slots", {}, "of workers that are present");
  const MetricSpec& slots_used = Gauge("nibble_slots_used", "slots", {}, "that live attempts hold");
  const MetricSpec& plan_seconds = Histogram("nibble_scheduling_pass_seconds", "seconds", {},
                                             "one pass of the scheduler took", ServiceSeconds());
  const MetricSpec& decisions =
      Counter("nibble_scheduling_decisions_total", "decisions", {"action"}, "of the scheduler");
  const MetricSpec& waiting =
      Gauge("nibble_jobs_waiting", "jobs", {"for"}, "that the latest pass left waiting, and why");

  // Workers.
  const MetricSpec& workers =
      Gauge("nibble_workers", "workers", {"lease", "mode"}, "that are known");
  const MetricSpec& lease_expiries =
      Counter("nibble_lease_expiries_total", "leases", {}, "that ran out: workers lost");
  const MetricSpec& streams =
      Gauge("nibble_worker_streams", "streams", {}, "of daemons that are open");
  const MetricSpec& reports =
      Counter("nibble_worker_reports_total", "reports", {"code"}, "of daemons that were handled");
  const MetricSpec& report_seconds =
      Histogram("nibble_worker_report_seconds", "seconds", {},
                "from a report to what follows from it being durable", ServiceSeconds());

  // Calls.
  const MetricSpec& rpcs =
      Counter("nibble_rpcs_total", "calls", {"method", "code"}, "that have ended");
  const MetricSpec& rpc_seconds = Histogram("nibble_rpc_seconds", "seconds", {"method"},
                                            "a call without a stream took", ServiceSeconds());
  const MetricSpec& watches = Gauge("nibble_watches_open", "watches", {}, "of jobs");
  const MetricSpec& waits = Gauge("nibble_waits_open", "waits", {}, "for jobs");

  // The store.
  const MetricSpec& store_healthy =
      Gauge("nibble_store_healthy", "", {}, "1; 0 once a write has failed");
  const MetricSpec& commits =
      Counter("nibble_store_commits_total", "batches", {}, "that are durable");
  const MetricSpec& commits_failed = Counter("nibble_store_failed_commits_total", "batches", {},
                                             "that were taken and then failed");
  const MetricSpec& commits_refused =
      Counter("nibble_store_refused_commits_total", "batches", {}, "that were not taken");
  const MetricSpec& committed_bytes =
      Counter("nibble_store_committed_bytes_total", "bytes", {}, "of batches that are durable");
  const MetricSpec& commits_waiting =
      Gauge("nibble_store_waiting_commits", "batches", {}, "on their way to the disk");
  const MetricSpec& waiting_bytes =
      Gauge("nibble_store_waiting_bytes", "bytes", {}, "of batches on their way to the disk");
  const MetricSpec& write_batches =
      Histogram("nibble_store_write_batches", "batches", {}, "that shared one synced write",
                StoreMetrics().batches_per_write.bounds);
  const MetricSpec& write_seconds =
      Histogram("nibble_store_write_seconds", "seconds", {},
                "one synced write took, its fsync included", StoreMetrics().write_seconds.bounds);
  const MetricSpec& journal_last =
      Gauge("nibble_journal_sequence", "", {}, "of the last update that is durable");
  const MetricSpec& journal_first =
      Gauge("nibble_journal_first_sequence", "", {}, "of the oldest update that is kept");
  const MetricSpec& recovery = Gauge("nibble_recovery_seconds", "seconds", {"part"},
                                     "the start took to open the store and to load the state");
  const MetricSpec& entities = Gauge("nibble_entities", "entities", {"kind"}, "in memory");
  const MetricSpec& entity_bytes =
      Gauge("nibble_entity_bytes", "bytes", {"kind"},
            "serialised, approximately: their count times the mean size of those seen");
};

// One per program.
const CoordinatorTable& CoordinatorRows();

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_COORDINATOR_TABLE_H_
