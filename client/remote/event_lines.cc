#include "client/remote/event_lines.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/remote/coordinator_client.h"
#include "common/errno_error.h"
#include "common/status_macros.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "worker/trainer/report/event_log.h"
#include "worker/trainer/report/events.h"

namespace nibble {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(500);  // at a followed file
constexpr size_t kReadBytes = 64 << 10;

// Whether a line ends its run.
bool EndsRun(std::string_view line) {
  for (const char* kind : {FinishEvent::kName, ErrorEvent::kName}) {
    if (absl::StrContains(absl::string_view(line.data(), line.size()).substr(0, 64),
                          absl::StrCat("\"event\":\"", kind, "\""))) {
      return true;
    }
  }
  return false;
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

bool SeenLines::IsNew(std::string_view line) {
  if (at_ == 0 && line != first_) {
    first_ = std::string(line);
    seen_ = 0;
  }
  if (++at_ <= seen_) return false;
  ++seen_;
  return true;
}

absl::Status JobEventLines::ReadStream(bool follow, SeenLines& seen, const LineTaker& taker,
                                       Interrupt* interrupt, bool& any, absl::Status& taken) {
  v1::StreamLogsRequest request;
  request.set_job(job_);
  request.set_attempt(attempt_);
  request.set_follow(follow);
  request.set_events(true);
  const std::unique_ptr<ResponseStream<v1::StreamLogsResponse>> stream =
      session_.client().StreamLogs(request);
  std::optional<Interrupt::Call> call;
  if (interrupt != nullptr) call.emplace(*interrupt, [&stream] { stream->Cancel(); });
  v1::StreamLogsResponse lines;
  int64_t attempt = 0;
  while (taken.ok() && stream->Read(lines)) {
    if (std::exchange(attempt, lines.attempt()) != lines.attempt()) seen.Begin();
    for (const std::string& line : lines.lines()) {
      any = true;
      if (taken.ok() && seen.IsNew(line)) taken = taker.take(line);
    }
    if (taken.ok()) taken = taker.pause();
  }
  if (!taken.ok()) {
    stream->Cancel();
    while (stream->Read(lines)) {
    }
  }
  return stream->Finish();
}

absl::Status JobEventLines::Read(bool follow, const LineTaker& taker) {
  std::optional<Interrupt> interrupt;
  if (follow) interrupt.emplace();
  SeenLines seen;
  Backoff backoff = RetryBackoff();
  absl::Duration deadline = SteadyNow() + patience_;
  while (true) {
    bool any = false;
    absl::Status taken;
    const absl::Status status =
        ReadStream(follow, seen, taker, interrupt ? &*interrupt : nullptr, any, taken);
    if (!taken.ok()) return taken;
    if (interrupt && interrupt->happened()) return absl::CancelledError("interrupted");
    if (status.ok()) return status;
    if (any) {
      backoff.Reset();
      deadline = SteadyNow() + patience_;
    }
    const absl::Duration pause = absl::FromChrono(backoff.Next());
    if (!absl::IsUnavailable(status) || SteadyNow() + pause >= deadline) {
      return session_.client().Explain(status);
    }
    if (interrupt) {
      interrupt->SleepFor(pause);
    } else {
      absl::SleepFor(pause);
    }
  }
}

std::optional<std::string> RunDirectory(const std::string& given, const RemoteFlags& flags) {
  std::error_code ignored;
  const bool directory =
      given.find('/') != std::string::npos || std::filesystem::is_directory(given, ignored);
  if (!directory || !flags.server.empty()) return std::nullopt;
  std::filesystem::path path = std::filesystem::absolute(given, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.string();
}

FileEventLines::FileEventLines(const std::string& directory)
    : path_(absl::StrCat(directory, "/", kEventLogFile)) {}

absl::Status FileEventLines::Read(bool follow, const LineTaker& taker) {
  std::optional<Interrupt> interrupt;
  if (follow) interrupt.emplace();
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path_.c_str(), "re"));
  if (file == nullptr) return ErrnoError(errno, "event log: opening", path_);
  std::vector<char> bytes(kReadBytes);
  std::string line;  // that has no end yet
  bool ended = false;
  while (true) {
    if (interrupt && interrupt->happened()) return absl::CancelledError("interrupted");
    const size_t got = std::fread(bytes.data(), 1, bytes.size(), file.get());
    std::string_view rest(bytes.data(), got);
    while (true) {
      const size_t feed = rest.find('\n');
      line.append(rest.substr(0, feed));
      if (feed == std::string_view::npos) break;
      rest.remove_prefix(feed + 1);
      ended = EndsRun(line);
      NIBBLE_RETURN_IF_ERROR(taker.take(line));
      line.clear();
    }
    if (std::ferror(file.get()) != 0) return ErrnoError(errno, "event log: reading", path_);
    if (got == bytes.size()) continue;
    NIBBLE_RETURN_IF_ERROR(taker.pause());
    // A line without its end is one that is being written.
    if (!follow || ended) return absl::OkStatus();
    interrupt->SleepFor(kLookAgain);
    std::clearerr(file.get());
  }
}

}  // namespace nibble
