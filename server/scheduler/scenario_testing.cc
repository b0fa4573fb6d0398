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

int Int(const std::string& text) { return static_cast<int>(Number(text)); }

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
    placement.push_back({on[0], Int(on[1])});
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

template <class Entity>
struct Key {
  const char* name;
  void (*set)(Entity& entity, const std::string& value);
};

template <class Entity, size_t N>
void Set(const Key<Entity> (&keys)[N], const Setting& setting, Entity& entity) {
  for (const Key<Entity>& key : keys) {
    if (setting.key == key.name) return key.set(entity, setting.value);
  }
  Unreadable(setting.key);
}

void ReadSlots(Job& job, const std::string& text) {
  const std::vector<std::string> ends = absl::StrSplit(text, '-');
  job.min_slots = Int(ends.front());
  job.max_slots = Int(ends.back());
}

void ReadHeld(Job& job, const std::string& text) {
  job.held = ReadPlacement(text);
  if (job.phase == JobPhase::kQueued) job.phase = JobPhase::kRunning;
}

using Text = std::string;

constexpr Key<Worker> kWorkerKeys[] = {
    {"slots", [](Worker& w, const Text& v) { w.slots = Int(v); }},
    {"rack", [](Worker& w, const Text& v) { w.rack = v; }},
    {"labels", [](Worker& w, const Text& v) { w.labels = List(v); }},
};

constexpr Key<Queue> kQueueKeys[] = {
    {"quota", [](Queue& q, const Text& v) { q.quota = Number(v); }},
    {"cohort", [](Queue& q, const Text& v) { q.cohort = v; }},
    {"borrow", [](Queue& q, const Text& v) { q.borrow_limit = Number(v); }},
};

constexpr Key<Job> kJobKeys[] = {
    {"slots", ReadSlots},
    {"sizes",
     [](Job& j, const Text& v) {
       for (const Text& size : List(v)) j.sizes.push_back(Int(size));
     }},
    {"needs", [](Job& j, const Text& v) { j.required = List(v); }},
    {"prefers", [](Job& j, const Text& v) { j.preferred = List(v); }},
    {"excludes", [](Job& j, const Text& v) { j.excluded_workers = List(v); }},
    {"spares", [](Job& j, const Text& v) { j.spare_slots = Int(v); }},
    {"fixed", [](Job& j, const Text&) { j.preemptible = false; }},
    {"on", ReadHeld},
    {"next", [](Job& j, const Text& v) { j.next = ReadPlacement(v); }},
    {"queue", [](Job& j, const Text& v) { j.queue = v; }},
    {"priority", [](Job& j, const Text& v) { j.priority = Int(v); }},
    {"at", [](Job& j, const Text& v) { j.submitted = Time(v); }},
    {"after", [](Job& j, const Text& v) { j.not_before_ms = Time(v); }},
    {"takes", [](Job& j, const Text& v) { j.expected_ms = Duration(v); }},
    {"ends", [](Job& j, const Text& v) { j.expected_end_ms = Time(v); }},
    {"saved", [](Job& j, const Text& v) { j.checkpoint_ms = Time(v); }},
    {"resized", [](Job& j, const Text& v) { j.resized_ms = Time(v); }},
};

void ReadWorkers(const std::string& pattern, std::istringstream& in, Snapshot& snapshot) {
  Worker worker;
  for (const Setting& setting : Settings(in)) {
    const int state = IndexOf(kStates, setting.key);
    if (state < 0) {
      Set(kWorkerKeys, setting, worker);
    } else {
      worker.state = static_cast<WorkerState>(state);
    }
  }
  for (const std::string& name : Names(pattern)) {
    worker.name = name;
    snapshot.workers.push_back(worker);
  }
}

void ReadJob(const std::string& name, std::istringstream& in, Snapshot& snapshot) {
  Job job{.name = name, .queue = "main"};
  for (const Setting& setting : Settings(in)) {
    const int phase = IndexOf(kPhases, setting.key);
    if (phase < 0) {
      Set(kJobKeys, setting, job);
    } else {
      job.phase = static_cast<JobPhase>(phase);
    }
  }
  snapshot.jobs.push_back(job);
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
      Queue& queue = snapshot.queues.emplace_back(Queue{.name = name});
      for (const Setting& setting : Settings(in)) Set(kQueueKeys, setting, queue);
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
    if (!j.held.empty()) absl::StrAppend(&text, " on=", ToText(j.held));
    if (!j.next.empty()) absl::StrAppend(&text, " next=", ToText(j.next));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace nibble::scheduler::testing
