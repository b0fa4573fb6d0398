#include "worker/trainer/trace/chrome_trace.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/errno_error.h"

namespace nibble {
namespace {

constexpr std::array<const char*, kTraceTracks> kTrackNames = {
    "host", "steps", "compute", "gaps of compute", "communication", "copies"};
constexpr char kFileBegin[] = "[\n";
constexpr char kFileEnd[] = "\n]\n";

std::string JsonString(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Names a process or a thread of the trace.
std::string NameEvent(const char* kind, int rank, int track, const std::string& name) {
  return absl::StrFormat(R"({"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{"name":%s}})", kind,
                         rank, track, JsonString(name));
}

std::string OrderEvent(const char* kind, int rank, int track, int order) {
  return absl::StrFormat(R"({"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{"sort_index":%d}})",
                         kind, rank, track, order);
}

std::string SpanEvent(int rank, const TraceSpan& span) {
  std::string arguments;
  if (span.flops > 0) {
    arguments = absl::StrFormat(R"(,"args":{"flops":%.0f})", span.flops);
  } else if (span.bytes > 0) {
    arguments = absl::StrFormat(R"(,"args":{"bytes":%.0f})", span.bytes);
  }
  // Microseconds, with nanoseconds as their fraction.
  return absl::StrFormat(R"({"ph":"X","name":%s,"pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f%s})",
                         JsonString(span.name), rank, static_cast<int>(span.track),
                         span.begin * 1e6, span.seconds * 1e6, arguments);
}

absl::Status WriteAt(int file, off_t at, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = pwrite(file, text.data(), text.size(), at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoError(errno, "trace: writing", path);
    at += written;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<TraceSpan> GapsOf(const std::vector<TraceSpan>& spans, double least) {
  using Interval = std::pair<double, double>;
  std::vector<Interval> steps, busy;
  for (const TraceSpan& span : spans) {
    if (span.track == TraceTrack::kSteps) steps.emplace_back(span.begin, span.begin + span.seconds);
    if (span.track == TraceTrack::kCompute)
      busy.emplace_back(span.begin, span.begin + span.seconds);
  }
  std::sort(steps.begin(), steps.end());
  std::sort(busy.begin(), busy.end());
  std::vector<TraceSpan> gaps;
  size_t next = 0;
  double at = -1;  // everything before it has been looked at
  for (const auto& [begin, end] : steps) {
    at = std::max(at, begin);
    while (at < end) {
      while (next < busy.size() && busy[next].second <= at) ++next;
      const double until = next == busy.size() ? end : std::min(busy[next].first, end);
      if (until - at >= least) {
        gaps.push_back(
            {.track = TraceTrack::kGaps, .name = "gap", .begin = at, .seconds = until - at});
      }
      at = until;
      if (next < busy.size() && busy[next].first <= at) at = std::min(busy[next].second, end);
    }
  }
  return gaps;
}

std::string ChromeEvents(const RankTrace& trace) {
  std::vector<std::string> events;
  events.reserve(trace.spans.size() + 2 * kTraceTracks + 2);
  events.push_back(NameEvent(
      "process_name", trace.rank, 0,
      trace.dropped == 0
          ? absl::StrCat("rank ", trace.rank)
          : absl::StrCat("rank ", trace.rank, " (", trace.dropped, " later spans are missing)")));
  events.push_back(OrderEvent("process_sort_index", trace.rank, 0, trace.rank));
  for (int track = 0; track < kTraceTracks; ++track) {
    events.push_back(NameEvent("thread_name", trace.rank, track, kTrackNames[track]));
    events.push_back(OrderEvent("thread_sort_index", trace.rank, track, track));
  }
  std::vector<const TraceSpan*> sorted;
  for (const TraceSpan& span : trace.spans) sorted.push_back(&span);
  // Spans that contain others come first.
  std::stable_sort(sorted.begin(), sorted.end(), [](const TraceSpan* a, const TraceSpan* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->seconds > b->seconds;
  });
  for (const TraceSpan* span : sorted) events.push_back(SpanEvent(trace.rank, *span));
  return absl::StrJoin(events, ",\n");
}

std::string ChromeFile(const std::vector<std::string>& events) {
  return absl::StrCat(kFileBegin, absl::StrJoin(events, ",\n"), kFileEnd);
}

absl::Status AppendTrace(const std::string& path, std::string_view events) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return ErrnoError(errno, "trace: opening", path);
  const absl::Cleanup closes = [file] { close(file); };  // also ends the lock
  if (flock(file, LOCK_EX) != 0) return ErrnoError(errno, "trace: locking", path);
  struct stat found = {};
  if (fstat(file, &found) != 0) return ErrnoError(errno, "trace: reading", path);
  const std::string added(events);
  if (found.st_size == 0) return WriteAt(file, 0, ChromeFile({added}), path);
  constexpr off_t kEndBytes = sizeof(kFileEnd) - 1;
  char end[kEndBytes] = {};
  const bool ours = found.st_size > kEndBytes &&
                    pread(file, end, kEndBytes, found.st_size - kEndBytes) == kEndBytes &&
                    std::string_view(end, kEndBytes) == kFileEnd;
  if (!ours) {
    return absl::FailedPreconditionError(
        absl::StrCat("trace: ", path, " exists and is not a trace; name another file"));
  }
  return WriteAt(file, found.st_size - kEndBytes, absl::StrCat(",\n", added, kFileEnd), path);
}

}  // namespace nibble
