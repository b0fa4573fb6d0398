// Load for a coordinator: a job to submit, and workers that each report over a stream of their own
// once a second, with the latencies of the answers. The workers may be split over several
// processes.
//
// Ownership: values. Thread-safety: all functions.
#ifndef NIBBLE_BENCH_CONTROL_HEARTBEAT_LOAD_H_
#define NIBBLE_BENCH_CONTROL_HEARTBEAT_LOAD_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "proto/nibble/v1/worker_link.pb.h"

namespace nibble::bench {

// YAML of a job with this number of ranks. The coordinator reads none of its files.
std::string JobSpecText(int ranks);

// The report of worker `number`.
v1::ConnectRequest HeartbeatOf(int number);

struct HeartbeatLoad {
  std::string target;  // host:port
  int workers = 0;     // of all processes
  int share = 0;       // of this process: workers share, share + of, …
  int of = 1;
  int connections = 1;        // of this process
  int64_t begin_unix_ms = 0;  // start of the measurement; workers register before
  double seconds = 0;         // duration of the measurement
};

struct HeartbeatAnswers {
  std::vector<double> seconds;  // from the report to the answer
  int64_t late = 0;             // reports skipped because the previous one had no answer yet
  int64_t answered = 0;         // workers with at least one answer
  int64_t ended = 0;            // streams that ended early
  std::string why;              // the error of one of them
};

HeartbeatAnswers GenerateHeartbeats(const HeartbeatLoad& load);

// As text. ReadAnswers adds to `answers`; false if the text is incomplete.
void WriteAnswers(const HeartbeatAnswers& answers, FILE* out);
bool ReadAnswers(FILE* in, HeartbeatAnswers& answers);

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_CONTROL_HEARTBEAT_LOAD_H_
