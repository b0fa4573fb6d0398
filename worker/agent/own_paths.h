// Texts that leave a worker name no absolute path of its own directories: who reads an error of a
// job learns which file of the job it is about, and not where the worker keeps it.
//
// Ownership: values. Thread-safety: all methods.
#ifndef NIBBLE_WORKER_AGENT_OWN_PATHS_H_
#define NIBBLE_WORKER_AGENT_OWN_PATHS_H_

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "common/mutex.h"

namespace nibble {

class OwnPaths {
 public:
  // `log` receives each text from which something was taken, with its paths; not again while it is
  // one of the last kRemembered. Relative directories are left out.
  OwnPaths(const std::vector<std::string>& directories,
           std::function<void(const std::string& text)> log);

  // The text in which a path below one of the directories is relative to it, and the directory
  // itself its last name.
  std::string Hide(const std::string& text);

 private:
  static constexpr size_t kRemembered = 64;

  std::vector<std::string> directories_;  // without a slash at the end; the longest first
  const std::function<void(const std::string&)> log_;
  Mutex mutex_;
  std::deque<std::string> logged_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_OWN_PATHS_H_
