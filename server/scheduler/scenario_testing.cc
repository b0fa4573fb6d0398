#include "server/scheduler/scenario_testing.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace nibble::scheduler::testing {
namespace {

constexpr const char* kPhases[] = {"queued",  "recovering", "starting",
                                   "running", "resizing",   "stopping"};
constexpr const char* kStates[] = {"ready", "cordoned", "draining", "lost"};

[[noreturn]] void Unreadable(const std::string& what) {
  std::fprintf(stderr, "scenario: cannot read '%s'\n", what.c_str());
  std::abort();
}

template <size_t N>
int IndexOf(const char* const (&words)[N], const std::string& word) {
  for (size_t i = 0; i < N; ++i) {
    if (word == words[i]) return static_cast<int>(i);
  }
  return -1;
}

int64_t Number(const std::string& text) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) Unreadable(text);
  return value;
}

int64_t Time(std::string text) {
  const bool relative = !text.empty() && (text[0] == '+' || text[0] == '-');
  int64_t unit = 1;
  if (!text.empty() && text.back() == 's') unit = 1000;
  if (!text.empty() && text.back() == 'm') unit = 60'000;
  if (unit > 1) text.pop_back();
  return Number(text) * unit + (relative ? kNow : 0);
}

int64_t Duration(std::string text) {
  return text.empty() || text[0] == '+' ? Time(text) - kNow : Time("+" + text) - kNow;
}

std::vector<std::string> List(const std::string& text) {
  if (text.empty()) return {};
  return absl::StrSplit(text, ',');
}

Placement ReadPlacement(const std::string& text) {
  Placement placement;
  if (text.empty()) return placement;
  const std::vector<std::string> parts = absl::StrSplit(text, '+');
  for (const std::string& part : parts) {
    const std::vector<std::string> on = absl::StrSplit(part, ':');
    if (on.size() != 2) Unreadable(part);
    placement.push_back({on[0], static_cast<int>(Number(on[1]))});
  }
  return placement;
}

struct Setting {
  std::string key, value;
};

// "key=value", the value up to the next blank; a lone word has no value.
std::vector<Setting> Settings(std::istringstream& in) {
  std::vector<Setting> settings;
  std::string word;
  while (in >> word) {
    const size_t at = word.find('=');
    if (at == std::string::npos) {
      settings.push_back({word, ""});
    } else {
      settings.push_back({word.substr(0, at), word.substr(at + 1)});
    }
  }
  return settings;
}

std::vector<std::string> Names(const std::string& pattern) {
  const size_t open = pattern.find('['), dash = pattern.find('-', open);
  if (open == std::string::npos) return {pattern};
  std::vector<std::string> names;
  const int64_t first = Number(pattern.substr(open + 1, dash - open - 1));
  const int64_t last = Number(pattern.substr(dash + 1, pattern.find(']') - dash - 1));
  for (int64_t i = first; i <= last; ++i) names.push_back(absl::StrCat(pattern.substr(0, open), i));
  return names;
}

void ReadWorkers(const std::string& pattern, std::istringstream& in, Snapshot& snapshot) {
  Worker worker;
  for (const auto& [key, value] : Settings(in)) {
    if (key == "slots") {
      worker.slots = static_cast<int>(Number(value));
    } else if (key == "rack") {
      worker.rack = value;
    } else if (key == "labels") {
      worker.labels = List(value);
    } else if (IndexOf(kStates, key) >= 0) {
      worker.state = static_cast<WorkerState>(IndexOf(kStates, key));
    } else {
      Unreadable(key);
    }
  }
  for (const std::string& name : Names(pattern)) {
    worker.name = name;
    snapshot.workers.push_back(worker);
  }
}

void ReadQueue(const std::string& name, std::istringstream& in, Snapshot& snapshot) {
  Queue queue{.name = name};
  for (const auto& [key, value] : Settings(in)) {
    if (key == "quota") {
      queue.quota = Number(value);
    } else if (key == "cohort") {
      queue.cohort = value;
    } else if (key == "borrow") {
      queue.borrow_limit = Number(value);
    } else {
      Unreadable(key);
    }
  }
  snapshot.queues.push_back(queue);
}

void ReadSlots(const std::string& text, Job& job) {
  const std::vector<std::string> ends = absl::StrSplit(text, '-');
  job.min_slots = static_cast<int>(Number(ends.front()));
  job.max_slots = static_cast<int>(Number(ends.back()));
}

bool ReadWhat(const std::string& key, const std::string& value, Job& job) {
  if (key == "slots") {
    ReadSlots(value, job);
  } else if (key == "sizes") {
    for (const std::string& size : List(value)) {
      job.sizes.push_back(static_cast<int>(Number(size)));
    }
  } else if (key == "needs") {
    job.required = List(value);
  } else if (key == "prefers") {
    job.preferred = List(value);
  } else if (key == "excludes") {
    job.excluded_workers = List(value);
  } else if (key == "spares") {
    job.spare_slots = static_cast<int>(Number(value));
  } else if (key == "fixed") {
    job.preemptible = false;
  } else if (key == "on") {
    job.held = ReadPlacement(value);
    if (job.phase == JobPhase::kQueued) job.phase = JobPhase::kRunning;
  } else if (key == "next") {
    job.next = ReadPlacement(value);
  } else {
    return false;
  }
  return true;
}

bool ReadWhen(const std::string& key, const std::string& value, Job& job) {
  if (key == "queue") {
    job.queue = value;
  } else if (key == "priority") {
    job.priority = static_cast<int>(Number(value));
  } else if (key == "at") {
    job.submitted = Time(value);
  } else if (key == "after") {
    job.not_before_ms = Time(value);
  } else if (key == "takes") {
    job.expected_ms = Duration(value);
  } else if (key == "ends") {
    job.expected_end_ms = Time(value);
  } else if (key == "saved") {
    job.checkpoint_ms = Time(value);
  } else if (key == "resized") {
    job.resized_ms = Time(value);
  } else {
    return false;
  }
  return true;
}

void ReadJob(const std::string& name, std::istringstream& in, Snapshot& snapshot) {
  Job job{.name = name, .queue = "main"};
  for (const auto& [key, value] : Settings(in)) {
    if (IndexOf(kPhases, key) >= 0) {
      job.phase = static_cast<JobPhase>(IndexOf(kPhases, key));
    } else if (!ReadWhat(key, value, job) && !ReadWhen(key, value, job)) {
      Unreadable(key);
    }
  }
  snapshot.jobs.push_back(job);
}

std::string Text(const Placement& placement) {
  std::vector<std::string> parts;
  for (const SlotsOn& on : placement) parts.push_back(absl::StrCat(on.worker, ":", on.slots));
  return absl::StrJoin(parts, "+");
}

}  // namespace

Snapshot Scenario(const std::string& text) {
  Snapshot snapshot;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    std::istringstream in(line);
    std::string what, name;
    if (!(in >> what)) continue;
    if (!(in >> name)) Unreadable(line);
    if (what == "worker") {
      ReadWorkers(name, in, snapshot);
    } else if (what == "queue") {
      ReadQueue(name, in, snapshot);
    } else if (what == "job") {
      ReadJob(name, in, snapshot);
    } else {
      Unreadable(line);
    }
  }
  if (snapshot.queues.empty()) snapshot.queues.push_back({.name = "main"});
  return snapshot;
}

std::string ToText(const Snapshot& snapshot) {
  std::string text;
  for (const Worker& w : snapshot.workers) {
    absl::StrAppend(&text, "worker ", w.name, " slots=", w.slots, " rack=", w.rack,
                    " labels=", absl::StrJoin(w.labels, ","), " ",
                    kStates[static_cast<int>(w.state)], "\n");
  }
  for (const Queue& q : snapshot.queues) {
    absl::StrAppend(&text, "queue ", q.name, " quota=", q.quota, " cohort=", q.cohort,
                    " borrow=", q.borrow_limit, "\n");
  }
  for (const Job& j : snapshot.jobs) {
    absl::StrAppend(
        &text, "job ", j.name, " ", kPhases[static_cast<int>(j.phase)], " queue=", j.queue,
        " priority=", j.priority, " at=", j.submitted, " slots=", j.min_slots, "-", j.max_slots,
        " sizes=", absl::StrJoin(j.sizes, ","), " needs=", absl::StrJoin(j.required, ","),
        " prefers=", absl::StrJoin(j.preferred, ","));
    absl::StrAppend(&text, " excludes=", absl::StrJoin(j.excluded_workers, ","),
                    " spares=", j.spare_slots, j.preemptible ? "" : " fixed",
                    " after=", j.not_before_ms, " takes=", j.expected_ms,
                    " ends=", j.expected_end_ms, " saved=", j.checkpoint_ms);
    absl::StrAppend(&text, " resized=", j.resized_ms);
    if (!j.held.empty()) absl::StrAppend(&text, " on=", Text(j.held));
    if (!j.next.empty()) absl::StrAppend(&text, " next=", Text(j.next));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace nibble::scheduler::testing
