// What the scheduler answers: changes to make, and for each job that is left as it is and could be
// otherwise, why. Every entry carries a reason that a person can read.
//
// Ownership: values. Thread-safety: values.
#ifndef NIBBLE_SERVER_SCHEDULER_DECISIONS_H_
#define NIBBLE_SERVER_SCHEDULER_DECISIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {

struct Policy {
  // A job that is preempted or resized has this long for its checkpoint, then it is stopped.
  int64_t grace_ms = 60'000;
  // A job grows only when its last start or change of size is this long ago.
  int64_t grow_interval_ms = 600'000;
};

enum class Action : uint8_t {
  kPreempt,  // checkpoint and leave; the job keeps its place in the queue
  kResize,   // checkpoint and go on on `placement`
  kStart,    // the job becomes kStarting with `placement`, which is its own from now on
};

struct Decision {
  Action action = Action::kStart;
  std::string job;
  Placement placement;                 // of kStart and kResize, ascending by worker
  std::vector<std::string> waits_for;  // jobs that still leave slots of `placement`, ascending
  std::string helps;        // of kPreempt and of a shrinking kResize: for which job; or ""
  int64_t deadline_ms = 0;  // of kPreempt and kResize: stopped then at the latest
  std::string reason;
  friend bool operator==(const Decision&, const Decision&) = default;
};

enum class WaitKind : uint8_t {
  kSlots,    // not enough free slots that it can use, or others ahead have a claim to them
  kQuota,    // its queue or its queue's cohort has no quota left
  kBackOff,  // not before a time
  kNever,    // cannot be on this cluster as it stands; takes no place in the line
};

// A job that waits, and why.
struct Waiting {
  std::string job;
  WaitKind kind = WaitKind::kSlots;
  std::string behind;  // the job whose claim comes first; "" where none is ahead
  int64_t due_ms = 0;  // when its slots are expected to be free; 0: unknown
  Placement reserved;  // free slots held for it, ascending by worker
  std::string reason;
  friend bool operator==(const Waiting&, const Waiting&) = default;
};

// A job that holds slots and is left as it is although more could be wished for it.
struct Remark {
  std::string job;
  std::string reason;
  friend bool operator==(const Remark&, const Remark&) = default;
};

struct Decisions {
  std::vector<Decision> actions;  // preemptions, resizes, starts; each in the order of the line
  std::vector<Waiting> waiting;   // in the order of the line
  std::vector<Remark> remarks;  // of draining, of spares, of growth; each in the order of the line
  friend bool operator==(const Decisions&, const Decisions&) = default;
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_DECISIONS_H_
