#include "worker/trainer/report/event_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errno_error.h"
#include "common/status_macros.h"
#include "worker/trainer/report/events.h"

namespace nibble {

struct EventLine::Json {
  nlohmann::ordered_json object;
};

EventLine::EventLine(std::string_view event, absl::Time time) : json_(std::make_unique<Json>()) {
  json_->object["schema"] = kEventSchema;
  json_->object["event"] = std::string(event);
  json_->object["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

EventLine::~EventLine() = default;

void EventLine::Put(std::string_view name, const std::string& value) {
  json_->object[std::string(name)] = value;
}
void EventLine::Put(std::string_view name, const std::vector<std::string>& value) {
  json_->object[std::string(name)] = value;
}
void EventLine::Put(std::string_view name, int64_t value) {
  json_->object[std::string(name)] = value;
}
void EventLine::Put(std::string_view name, uint64_t value) {
  json_->object[std::string(name)] = value;
}
void EventLine::Put(std::string_view name, bool value) { json_->object[std::string(name)] = value; }
void EventLine::Put(std::string_view name, double value) {
  nlohmann::ordered_json& field = json_->object[std::string(name)];
  if (std::isfinite(value)) {
    field = value;
  } else {
    field = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
}

std::string EventLine::Text() const {
  return json_->object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string FigureEventText(const google::protobuf::Message& figures, absl::Time time) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *figures.GetReflection();
  EventLine line(FigureEventKind(*figures.GetDescriptor()).name(), time);
  for (const FigureField& figure : FigureEventFields(*figures.GetDescriptor())) {
    const FieldDescriptor* const field = figure.field;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
        line.Put(figure.name, reflection.GetInt64(figures, field));
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        line.Put(figure.name, reflection.GetDouble(figures, field));
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        line.Put(figure.name, reflection.GetBool(figures, field));
        break;
      default:  // texts; figures have no other types
        line.Put(figure.name, reflection.GetString(figures, field));
        break;
    }
  }
  return line.Text();
}

namespace {

absl::Status SystemError(std::string_view what, const std::string& path) {
  return ErrnoError(errno, absl::StrCat("event log: ", std::string(what)), path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLog>> EventLog::Open(const std::string& path, Clock clock) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return SystemError("cannot open", path);
  struct stat info = {};
  if (fstat(file, &info) != 0) {
    absl::Status status = SystemError("cannot read the state of", path);
    close(file);
    return status;
  }
  std::unique_ptr<EventLog> log(new EventLog(path, file, S_ISREG(info.st_mode), std::move(clock)));
  NIBBLE_RETURN_IF_ERROR(log->CutTornLine());
  return log;
}

EventLog::~EventLog() {
  // Errors are ignored: callers that need them call Flush() before.
  (void)Flush();
  close(file_);
}

void EventLog::Keep(std::string line) {
  // Once an event is lost all later ones are, so that the LostEvent marks the position.
  if (lost_ > 0 || waiting_bytes_ + line.size() > kMostWaitingBytes) {
    ++lost_;
    return;
  }
  waiting_bytes_ += line.size();
  waiting_.push_back(std::move(line));
}

absl::Status EventLog::Flush() {
  while (!waiting_.empty()) {
    NIBBLE_RETURN_IF_ERROR(WriteLine(waiting_.front()));
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
  }
  if (lost_ == 0) return absl::OkStatus();
  absl::Status status = WriteLine(EventText(LostEvent{.events = lost_}, clock_()));
  if (status.ok()) lost_ = 0;
  return status;
}

absl::Status EventLog::CutTornLine() {
  if (!regular_) return absl::OkStatus();
  const off_t size = lseek(file_, 0, SEEK_END);
  if (size < 0) return SystemError("cannot find the end of", path_);
  off_t end = size;  // after the last line feed of [0, end)
  std::array<char, 4096> chunk;
  while (end > 0) {
    const auto length = static_cast<size_t>(std::min<off_t>(end, chunk.size()));
    const ssize_t got = pread(file_, chunk.data(), length, end - static_cast<off_t>(length));
    if (got < 0) return SystemError("cannot read the end of", path_);
    if (got != static_cast<ssize_t>(length)) {
      return absl::AbortedError(
          absl::StrCat("event log: another process is shortening ", path_, " at byte ", end));
    }
    const std::string_view text(chunk.data(), length);
    const size_t feed = text.rfind('\n');
    if (feed != std::string_view::npos) {
      end -= static_cast<off_t>(length - feed - 1);
      break;
    }
    end -= static_cast<off_t>(length);
  }
  if (end < size && ftruncate(file_, end) != 0) return SystemError("cannot cut", path_);
  return absl::OkStatus();
}

absl::Status EventLog::WriteLine(std::string_view line) {
  const std::string separated = torn_ ? absl::StrCat("\n", std::string(line)) : std::string();
  std::string_view rest = torn_ ? std::string_view(separated) : line;
  const off_t begin = regular_ ? lseek(file_, 0, SEEK_END) : -1;
  while (!rest.empty()) {
    const ssize_t written = write(file_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      absl::Status status = SystemError("cannot write to", path_);
      const bool begun = rest.size() < (torn_ ? separated.size() : line.size());
      if (begun) torn_ = begin < 0 || ftruncate(file_, begin) != 0;
      return status;
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  torn_ = false;
  return absl::OkStatus();
}

}  // namespace nibble
