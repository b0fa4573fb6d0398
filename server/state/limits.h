// Every bound on what the coordinator stores or receives, and the checks that enforce them: texts
// in bytes, lists in entries, numbers by value. Every message from the network or the journal
// passes CheckBounds before anything reads it; a test fails for a text or list field that has no
// bound.
//
// Thread-safety: constants, immutable tables and pure functions.
#ifndef NIBBLE_SERVER_STATE_LIMITS_H_
#define NIBBLE_SERVER_STATE_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace google::protobuf {
class FieldDescriptor;
class Message;
}  // namespace google::protobuf

namespace nibble {

// Texts, bytes.
inline constexpr int64_t kMaxNameBytes = 80;  // jobs (63 and a number), workers, queues, clusters
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
inline constexpr int64_t kMaxNodes = 1024;       // NUMA nodes of one worker
inline constexpr int64_t kMaxSlotLinks = 2016;   // of one worker: pairs of 64 slots
inline constexpr int64_t kMaxCoresBytes = 4096;  // a list of cores as text
inline constexpr int64_t kMaxRanks = 1 << 16;    // of one attempt
inline constexpr int64_t kMaxAllowedRanks = 64;  // world sizes of one job
inline constexpr int64_t kMaxRevisions = 1024;   // of one timeline, without its archive
inline constexpr int64_t kManyRevisions = 64;    // of one timeline: from here on it is archived
inline constexpr int64_t kMaxSettings = 2000;    // of one recipe
inline constexpr int64_t kMaxTimelineBytes = int64_t{2} << 20;
inline constexpr int64_t kManyTimelineBytes = kMaxTimelineBytes / 8;  // archived from here on, too
inline constexpr int64_t kMaxFlags = 16;
inline constexpr int64_t kMaxPins = 16;
inline constexpr int64_t kMaxTasks = 16;
// Lives of coordinators in one epoch. A worker that was away for more begins another epoch.
inline constexpr int kMaxLives = 1000;
inline constexpr int64_t kMaxUploadCopies = 100;  // of one job in object storage
inline constexpr int64_t kMaxHolders = 16;        // of one shard
inline constexpr int64_t kMaxBlames = 256;
inline constexpr int64_t kMaxTargets = 8;  // URLs to which events of one job are posted
inline constexpr int64_t kMaxAlerts = 32;  // that fire about one job
inline constexpr int64_t kMaxRecentAttempts = 8;
inline constexpr int64_t kMaxDecided = 64;  // decisions of guards in one report
inline constexpr int64_t kMaxForkSettings = 64;
inline constexpr int64_t kMaxEventsPerJob = 200;
inline constexpr int64_t kMaxCheckpointsPerJob = 4096;
inline constexpr int64_t kMaxDeletionsPerJob = 256;   // records; of the oldest steps there is none
inline constexpr int64_t kMaxDeletionHolders = 64;    // named by one record
inline constexpr int64_t kMaxTrashedShards = 10'000;  // of one worker that are listed
inline constexpr int64_t kMaxOrphans = 10'000;  // jobs of one worker that the store does not know

// The whole cluster, entries.
inline constexpr int64_t kMaxUnfinishedJobs = 20'000;
inline constexpr int64_t kMaxFinishedJobs = 100'000;
inline constexpr int64_t kMaxWorkers = 20'000;
inline constexpr int64_t kMaxQueues = 1000;
inline constexpr int64_t kMaxRequests = 100'000;  // the newest ones are remembered

// Numbers.
inline constexpr int64_t kMaxPriority = 1000;  // and -kMaxPriority
inline constexpr int64_t kMaxRestarts = 1'000'000;
inline constexpr int64_t kMaxBackoffMs = int64_t{24} * 3600 * 1000;
inline constexpr int64_t kMaxGraceMs = int64_t{24} * 3600 * 1000;
inline constexpr int64_t kDefaultGraceMs = int64_t{5} * 60 * 1000;
// A job that no checkpoint lets run again fails after this: a worker may still bring one.
inline constexpr int64_t kUnresumableMs = int64_t{5} * 60 * 1000;
inline constexpr int64_t kMaxSteps = int64_t{1} << 48;
inline constexpr int64_t kMaxCount = int64_t{1} << 60;  // bytes, tokens, counters
inline constexpr int32_t kFailuresUntilExcluded = 2;    // attempts that one worker ended

// The bound of a text or a list, by the name of its field: "reason", or "Message.field" for a
// message whose field has a bound of its own.
struct FieldLimit {
  const char* field;
  int64_t most;           // bytes of a text, entries of a list
  int64_t most_each = 0;  // of a list of texts: bytes of each
};

// InvalidArgument names the field by its path ("facts[2].job_moved.reason"), its size and the
// bound. Also for a text that is not UTF-8 or that has control characters; documents and outputs
// may have newlines and tabs.
// FailedPrecondition: a message has a field that this program does not know, since only a newer one
// could tell whether it may be ignored. What workers and callers send has none any more
// (server/service/wire.h), so that no such field reaches the store.
absl::Status CheckBounds(const google::protobuf::Message& message);

// The bound of a text, bytes or list field; unset if the table has none.
std::optional<FieldLimit> LimitOf(const google::protobuf::FieldDescriptor& field);

// InvalidArgument naming `field` unless the text is a name: letters, digits, '.', '_' and '-', the
// first of them a letter or digit, 1 to kMaxNameBytes.
absl::Status CheckName(absl::string_view field, absl::string_view name);
// InvalidArgument unless it is 8 to 64 letters, digits, '_' and '-'.
absl::Status CheckRequestId(absl::string_view request_id);
// InvalidArgument unless least <= value <= most.
absl::Status CheckRange(absl::string_view field, int64_t value, int64_t least, int64_t most);

// The longest prefix of `text` that is whole UTF-8 characters and at most `most` bytes.
std::string Clip(absl::string_view text, int64_t most);
// Whether the text has a character that readers do not see as such: a control character beyond
// ASCII, a separator of lines or paragraphs, or one that changes the direction of the text around
// it, which then reads as another. Texts that are stored may, if an earlier version took them.
bool HasUnseen(absl::string_view utf8);
// The text with a blank in place of each of these.
std::string WithoutUnseen(absl::string_view utf8);
// The text as a reason: clipped to kMaxReasonBytes, control characters and what HasUnseen finds
// replaced by blanks.
std::string OneLine(absl::string_view text);

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_LIMITS_H_
