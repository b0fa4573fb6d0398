// Where the lines are that ranks of an attempt wrote: with the workers that had them.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_CONTROLLER_LOG_SOURCES_H_
#define NIBBLE_SERVER_CONTROLLER_LOG_SOURCES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/controller/reads.h"

namespace nibble {

// Whose lines are asked for.
struct LogQuery {
  std::string job;        // id
  int64_t attempt = 0;    // number; 0: the latest
  bool or_later = false;  // the first there is from this number on
  int32_t rank = -1;      // -1: all
};

struct LogSource {
  int32_t rank = 0;
  std::string worker;
  std::string address;  // host:port; empty: the worker is forgotten
};

struct LogAttempt {
  int64_t number = 0;
  bool over = false;               // it no longer lives
  bool job_finished = false;       // and no attempt follows the latest
  std::vector<LogSource> sources;  // by rank
};

// InvalidArgument: rank or attempt is out of bounds. NotFound: there is no such job or attempt, or
// it is no longer kept.
absl::StatusOr<LogAttempt> Answer(const ReadContext& context, const LogQuery& query);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_LOG_SOURCES_H_
