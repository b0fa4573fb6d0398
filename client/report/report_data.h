// The data of a job's report, which the script of the page (page/) draws.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REPORT_REPORT_DATA_H_
#define NIBBLE_CLIENT_REPORT_REPORT_DATA_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "client/report/run_events.h"
#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/recipe.pb.h"
#include "proto/nibble/v1/worker.pb.h"

namespace nibble {

// A revision and its recipe as text.
struct ReportedRevision {
  v1::RecipeRevision revision;
  std::string recipe;  // "nvfp4, fprop=bf16"
};

struct ReportedJob {
  v1::Job job;
  RunRecord record;
  std::vector<ReportedRevision> revisions;  // by number
};

// An event and its description.
struct ReportedEvent {
  v1::JobEvent event;
  std::string text;
};

struct ReportInput {
  ReportedJob job;
  std::vector<ReportedJob> compared;  // the first one is the reference of the differences
  bool by_tokens = false;             // the page begins over tokens, not over steps
  std::vector<ReportedEvent> events;  // oldest first
  std::vector<v1::Checkpoint> checkpoints;
  std::vector<v1::Worker> workers;  // on which attempts ran, as far as they are still known
  std::string recipe_table;         // resolved, of the revision in effect
  int64_t recipe_revision = 0;      // whose table it is
  std::string spec_yaml;
  std::vector<std::string> notes;  // what is missing, for the reader
  int64_t now_unix_ms = 0;
};

nlohmann::ordered_json ReportData(const ReportInput& input);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REPORT_REPORT_DATA_H_
