// The lines of a run's event log (docs/reference/events.md): of a job in a cluster, streamed from
// the worker of its rank 0, or of a run's directory on this machine.
//
// A followed log is read until the run ends. Connections that break are made again, and lines that
// were read before are skipped: each line is passed on once, also when the job continues in another
// attempt, on the same worker or on another.
//
// Ownership: as each class says. Thread-safety: none.
#ifndef NIBBLE_CLIENT_REMOTE_EVENT_LINES_H_
#define NIBBLE_CLIENT_REMOTE_EVENT_LINES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/remote/terminal.h"
#include "client/remote/verb.h"

namespace nibble {

// Receives a log.
struct LineTaker {
  std::function<absl::Status(std::string_view line)> take;  // without its line feed
  // Nothing more is there at once: the time to show what was taken.
  std::function<absl::Status()> pause;
};

class EventLines {
 public:
  virtual ~EventLines() = default;

  // Passes on every line from the first one on. The first error of the taker ends the reading, and
  // is returned; Cancelled after Ctrl-C, while a log is followed.
  virtual absl::Status Read(bool follow, const LineTaker& taker) = 0;
};

// Removes from the streams of a log, which all begin at its start, what was passed on before.
class SeenLines {
 public:
  // A stream begins.
  void Begin() { at_ = 0; }
  // Whether the stream's next line is new. A stream whose first line is another than before is of
  // another log.
  bool IsNew(std::string_view line);

 private:
  std::string first_;  // line of the log
  int64_t seen_ = 0;   // its lines that were passed on
  int64_t at_ = 0;     // lines of the stream so far
};

// Of a job. `attempt`: whose rank 0 is asked; 0: the latest. `patience`: how long a worker or
// coordinator that does not answer is tried again; unset: --timeout. Borrows the session.
class JobEventLines : public EventLines {
 public:
  JobEventLines(Session& session, std::string job, int64_t attempt,
                std::optional<absl::Duration> patience = std::nullopt)
      : session_(session),
        job_(std::move(job)),
        attempt_(attempt),
        patience_(patience.value_or(session.client().options().timeout)) {}
  absl::Status Read(bool follow, const LineTaker& taker) override;

 private:
  absl::Status ReadStream(bool follow, SeenLines& seen, const LineTaker& taker,
                          Interrupt* interrupt, bool& any, absl::Status& taken);

  Session& session_;
  const std::string job_;
  const int64_t attempt_;
  const absl::Duration patience_;
};

// Of a run's directory. NotFound if it has no log.
class FileEventLines : public EventLines {
 public:
  explicit FileEventLines(const std::string& directory);
  absl::Status Read(bool follow, const LineTaker& taker) override;

 private:
  const std::string path_;
};

// The run's directory if `given` names one rather than a job: it has a '/', or is a directory, and
// no server was given. Absolute; its last part is the run's name.
std::optional<std::string> RunDirectory(const std::string& given, const RemoteFlags& flags);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_EVENT_LINES_H_
