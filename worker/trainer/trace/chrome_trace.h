// A trace of some steps of one rank, and its form for programs: Chrome's trace events, which
// Perfetto (ui.perfetto.dev) and chrome://tracing open.
//
// A rank is a process of the trace, and each of its tracks a thread. Times are seconds since
// kTraceEpoch, so that all ranks share a time axis, as well as their machines' clocks agree.
//
// Ownership: values. Thread-safety: pure functions; AppendTrace() also between processes.
#ifndef NIBBLE_WORKER_TRAINER_TRACE_CHROME_TRACE_H_
#define NIBBLE_WORKER_TRAINER_TRACE_CHROME_TRACE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace nibble {

// 2025-01-01 in seconds since 1970. Nanoseconds since then, as fractions of microseconds, still fit
// a double, in which readers of traces store them; those since 1970 do not.
inline constexpr int64_t kTraceEpoch = 1'735'689'600;

enum class TraceTrack {
  kHost,           // what the host does
  kSteps,          // steps and their parts, in the queue of the computation
  kCompute,        // operations of that queue
  kGaps,           // times in which none of them runs
  kCommunication,  // collectives
  kCopies,         // between host and device, and within the device
};
inline constexpr int kTraceTracks = 6;

struct TraceSpan {
  TraceTrack track = TraceTrack::kHost;
  std::string name;
  double begin = 0;  // seconds
  double seconds = 0;
  double flops = 0;  // of a matmul; 0: none
  double bytes = 0;  // of another operation, read and written; 0: unknown
};

struct RankTrace {
  int rank = 0;
  int64_t first_step = 0;
  std::vector<TraceSpan> spans;  // in any order
  int64_t dropped = 0;           // spans beyond the most that a trace keeps
};

// The times of at least `least` seconds within the spans of kSteps in which no span of kCompute
// runs, as spans of kGaps.
std::vector<TraceSpan> GapsOf(const std::vector<TraceSpan>& spans, double least);

// The trace's events, a JSON object a line with commas between them: what stands between the
// brackets of a file.
std::string ChromeEvents(const RankTrace& trace);
// A whole file of such texts.
std::string ChromeFile(const std::vector<std::string>& events);

// Adds the events of a rank to the file at `path`, which is made if there is none and is valid JSON
// after every call. Ranks of one machine may call it at the same time. FailedPrecondition if the
// file is not one that this function made.
absl::Status AppendTrace(const std::string& path, std::string_view events);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_TRACE_CHROME_TRACE_H_
