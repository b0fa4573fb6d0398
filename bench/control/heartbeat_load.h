// Load for a coordinator: workers that report over streams of their own, once a second each, and
// how long the answers take. One process has a share of them, so that what gRPC costs the workers
// grows with the share and not with all of them.
//
// Ownership: values. Thread-safety: functions that may run beside each other.
#ifndef NIBBLE_BENCH_CONTROL_HEARTBEAT_LOAD_H_
#define NIBBLE_BENCH_CONTROL_HEARTBEAT_LOAD_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "proto/nibble/v1/worker_link.pb.h"

namespace nibble::bench {

// What worker `number` says of itself.
v1::ConnectRequest HeartbeatOf(int number);

struct HeartbeatLoad {
  std::string target;  // host:port
  int workers = 0;     // of all processes
  int share = 0;       // of this process: workers share, share + of, …
  int of = 1;
  int connections = 1;        // of this process
  int64_t begin_unix_ms = 0;  // they register before, and what counts begins
  double seconds = 0;         // from then on
};

struct HeartbeatAnswers {
  std::vector<double> seconds;  // from the report to the answer
  int64_t late = 0;             // reports left out since the one before had no answer yet
  int64_t answered = 0;         // workers who were answered at all
  int64_t ended = 0;            // streams that ended too early
  std::string why;              // one of them has
};

HeartbeatAnswers GenerateHeartbeats(const HeartbeatLoad& load);

// As text. Reading adds to what there is; false where it is not whole.
void WriteAnswers(const HeartbeatAnswers& answers, FILE* out);
bool ReadAnswers(FILE* in, HeartbeatAnswers& answers);

}  // namespace nibble::bench

#endif  // NIBBLE_BENCH_CONTROL_HEARTBEAT_LOAD_H_
