// Every bound on what the coordinator stores or takes in: texts in bytes, lists in entries, numbers
// as they are. Whatever comes over the wire or out of a journal is held against these before it is
// looked at, by server/state/bounds.h; a field without a bound does not pass its test.
//
// Thread-safety: constants.
#ifndef NIBBLE_SERVER_STATE_LIMITS_H_
#define NIBBLE_SERVER_STATE_LIMITS_H_

#include <cstdint>

#include "absl/types/span.h"

namespace nibble {

// Texts, bytes.
inline constexpr int64_t kMaxNameBytes =
    80;  // of jobs (63 and a number), workers, queues, clusters
inline constexpr int64_t kMaxAuthorBytes = 200;
inline constexpr int64_t kMaxReasonBytes = 2000;
inline constexpr int64_t kMaxPathBytes = 1000;
inline constexpr int64_t kMaxSpecBytes = int64_t{1} << 20;
inline constexpr int64_t kMaxResponseBytes = int64_t{1} << 20;
inline constexpr int64_t kMaxUpdateBytes = int64_t{8} << 20;
inline constexpr int64_t kMinRequestIdBytes = 8;
inline constexpr int64_t kMaxRequestIdBytes = 64;

// Lists, entries.
inline constexpr int64_t kMaxFacts = 20'000;
inline constexpr int64_t kMaxLabels = 64;
inline constexpr int64_t kMaxSlots = 1024;       // of one worker
inline constexpr int64_t kMaxRanks = 1 << 16;    // of one attempt
inline constexpr int64_t kMaxAllowedRanks = 64;  // world sizes of one job
inline constexpr int64_t kMaxRevisions = 1024;   // of one timeline, beside its archive
inline constexpr int64_t kManyRevisions = 64;  // of one timeline: those that can go to the archive
inline constexpr int64_t kMaxSettings = 2000;  // of one recipe
inline constexpr int64_t kMaxTimelineBytes = int64_t{2} << 20;
inline constexpr int64_t kManyTimelineBytes = kMaxTimelineBytes / 8;  // as kManyRevisions
inline constexpr int64_t kMaxFlags = 16;
inline constexpr int64_t kMaxPins = 16;
inline constexpr int64_t kMaxTasks = 16;
inline constexpr int64_t kMaxHolders = 16;  // of one shard
inline constexpr int64_t kMaxBlames = 256;
inline constexpr int64_t kMaxTargets = 8;  // URLs to which events of one job are posted
inline constexpr int64_t kMaxRecentAttempts = 8;
inline constexpr int64_t kMaxEventsPerJob = 200;
inline constexpr int64_t kMaxCheckpointsPerJob = 4096;
inline constexpr int64_t kMaxOrphans = 10'000;  // jobs of one worker that its store does not know

// Of the whole cluster, entries.
inline constexpr int64_t kMaxUnfinishedJobs = 20'000;
inline constexpr int64_t kMaxFinishedJobs = 100'000;
inline constexpr int64_t kMaxWorkers = 20'000;
inline constexpr int64_t kMaxQueues = 1000;
inline constexpr int64_t kMaxRequests = 100'000;  // of carried-out requests, the newest

// Numbers.
inline constexpr int64_t kMaxPriority = 1000;  // and -kMaxPriority
inline constexpr int64_t kMaxRestarts = 1'000'000;
inline constexpr int64_t kMaxBackoffMs = int64_t{24} * 3600 * 1000;
inline constexpr int64_t kMaxGraceMs = int64_t{24} * 3600 * 1000;
inline constexpr int64_t kDefaultGraceMs = int64_t{5} * 60 * 1000;
inline constexpr int64_t kMaxSteps = int64_t{1} << 48;
inline constexpr int64_t kMaxCount = int64_t{1} << 60;  // bytes, tokens, numbers that grow
inline constexpr int32_t kFailuresUntilExcluded = 2;    // attempts that one worker may end
inline constexpr int32_t kMaxRollbacks = 2;  // by a guard, one after the other, before a pause

// The bound of a text or a list, by the name of its field: "reason", or "Message.field" where one
// message's is another's.
struct FieldLimit {
  const char* field;
  int64_t most;           // bytes of a text, entries of a list
  int64_t most_each = 0;  // of a list of texts: bytes of each
};
absl::Span<const FieldLimit> FieldLimits();

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_LIMITS_H_
