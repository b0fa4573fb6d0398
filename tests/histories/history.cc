#include "tests/histories/history.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

constexpr int kWorkers = 3;
constexpr int kRanks = 2;
constexpr int kEvents = 60;
constexpr int64_t kStepsBetween = 10;
constexpr char kSpec[] =
    "name: train\nmodel: tiny-hybrid\nrecipe: nvfp4\n"
    "data: {train: [corpus.txt], sequence: 128}\n"
    "training: {steps: 100000, batch: 16}\n"
    "checkpoints: {every: 10, keep_last: 2}\n"
    "optimizer: {warmup_steps: 10, decay_fraction: 0.2}\n"
    "resources: {ranks: 2}\n";

}  // namespace

const char* NameOf(Faults faults) {
  switch (faults) {
    case Faults::kRestores:
      return "restores";
    case Faults::kCopies:
      return "copies";
    case Faults::kTwoAlive:
      return "two alive";
    case Faults::kAll:
      break;
  }
  return "all";
}

History::History(uint64_t seed, Faults faults, std::string root)
    : random_(seed), faults_(faults), root_(std::move(root)) {}

History::~History() {
  nodes_.clear();
  coordinators_.clear();
}

std::string History::NewId() {
  std::string id;
  for (int i = 0; i < 32; ++i) id += "0123456789abcdef"[Draw(16)];
  return id;
}

void History::Enter(Node& node, int number) {
  node.worker = std::make_unique<SimulatedWorker>(
      absl::StrCat("w", number), node.directory, clock_, ++node.incarnation,
      // Often too small for anything that may be removed.
      Chance(70) ? 0 : int64_t{1} << 30,
      [this](const std::string& address, const v1::DesiredReplica& shard) {
        return std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& other) {
          return other.worker != nullptr && other.worker->name() + ":7000" == address &&
                 other.worker->Has(shard);
        });
      });
}

History::Node History::MakeNode(int number) {
  Node node;
  node.directory = absl::StrCat(root_, "/", ++directories_);
  node.incarnation = directories_ * 1000;
  Enter(node, number);
  return node;
}

void History::Begin() {
  coordinators_.push_back(std::make_shared<SimulatedCoordinator>(
      std::make_shared<MemoryDisk>(), clock_, [this] { return NewId(); }, false));
  for (int number = 1; number <= kWorkers; ++number) nodes_.push_back(MakeNode(number));
  for (int i = 0; i < 2; ++i) ExchangeSome(100);
  job_ = coordinators_.back()->Submit(kSpec);
  for (int i = 0; i < 3; ++i) {
    coordinators_.back()->Tick();
    ExchangeSome(100);
  }
}

void History::ExchangeSome(int percent) {
  for (Node& node : nodes_) {
    if (node.worker == nullptr || !Chance(percent)) continue;
    const size_t to = coordinators_.size() > 1 && Chance(40) ? 0 : coordinators_.size() - 1;
    node.worker->Exchange(coordinators_[to]);
  }
}

// The ranks of one attempt, where all of them run, store their shards.
void History::TakeCheckpoint() {
  std::map<int64_t, std::vector<SimulatedWorker*>> ranks;  // by attempt
  for (Node& node : nodes_) {
    if (node.worker == nullptr) continue;
    const auto gang = node.worker->gangs().find(job_);
    if (gang == node.worker->gangs().end() || gang->second.stopped) continue;
    ranks[gang->second.order.attempt()].push_back(node.worker.get());
  }
  for (const auto& [attempt, workers] : ranks) {
    if (workers.size() != kRanks) continue;
    int64_t step = 0;
    for (SimulatedWorker* worker : workers) {
      step = std::max(step, worker->gangs().at(job_).step);
    }
    step += kStepsBetween;
    step_ = std::max(step_, step);
    // A rank may be lost before its shard is sealed.
    const bool torn = Chance(10);
    for (SimulatedWorker* worker : workers) {
      SimulatedWorker::Gang& gang = worker->gangs().at(job_);
      gang.step = step;
      if (torn && worker == workers.back()) continue;
      worker->Store(job_, step, attempt, gang.order.first_rank(), kRanks);
    }
    Note(absl::StrCat("checkpoint of step ", step, ", attempt ", attempt, torn ? ", torn" : ""));
  }
}

void History::MakeBackup() {
  const Disk disk = coordinators_.back()->disk();
  coordinators_.pop_back();  // copied cold
  backup_ = CopyOf(disk);
  coordinators_.push_back(std::make_shared<SimulatedCoordinator>(
      disk, clock_, [this] { return NewId(); }, false));
  Note("backup");
}

void History::Restart(const Disk& disk, bool restored, bool old_lives, const char* what) {
  const int updates = restored ? 0 : Draw(200);
  if (coordinators_.size() > 1) coordinators_.erase(coordinators_.begin());
  if (!old_lives) coordinators_.clear();
  const auto start = [&](bool with_mark) {
    coordinators_.push_back(std::make_shared<SimulatedCoordinator>(
        disk, clock_, [this] { return NewId(); }, with_mark));
  };
  start(restored);
  // A copy that is as long as the original before any worker reports, and is restarted.
  coordinators_.back()->MakeUpdates(job_, updates);
  if (updates > 0) {
    coordinators_.pop_back();
    start(false);
  }
  Note(absl::StrCat(what, old_lives ? ", the old one lives" : "", ", updates ", updates));
}

void History::ChangePresence(Node& node) {
  const int number = static_cast<int>(&node - nodes_.data()) + 1;
  if (node.worker != nullptr) {
    node.worker.reset();
    Note(absl::StrCat("w", number, " goes away"));
  } else if (!node.directory.empty()) {
    Enter(node, number);
    Note(absl::StrCat("w", number, " comes back"));
  } else {
    node = MakeNode(number);
    Note(absl::StrCat("w", number, " is new"));
  }
}

void History::Destroy(Node& node) {
  // What is whole and not yet committed counts: its shards may be reported already.
  if (node.directory.empty() || RestorableStep(&node) < RestorableStep(nullptr)) return;
  node.worker.reset();
  std::filesystem::remove_all(node.directory);
  node.directory.clear();
  Note(absl::StrCat("w", &node - nodes_.data() + 1, " is destroyed"));
}

void History::Event() {
  const bool all = faults_ == Faults::kAll;
  const int event = Draw(100);
  if (event < 35) {
    ExchangeSome(70);
  } else if (event < 55) {
    TakeCheckpoint();
  } else if (event < 70) {
    clock_.Advance(1 + Draw(3000));
    for (const Coordinator& one : coordinators_) one->Tick();
  } else if (event < 74) {
    // Longer than a lease: who does not report is lost.
    for (int i = 0; i < 4; ++i) {
      clock_.Advance(3500);
      ExchangeSome(95);
      for (const Coordinator& one : coordinators_) one->Tick();
    }
    Note("a lease passes");
  } else if (event < 80) {
    ChangePresence(nodes_[static_cast<size_t>(Draw(kWorkers))]);
  } else if (event < 84) {
    if (faults_ == Faults::kRestores || all) Destroy(nodes_[static_cast<size_t>(Draw(kWorkers))]);
  } else if (event < 90) {
    if (coordinators_.size() == 1 && !coordinators_.back()->replaced()) MakeBackup();
  } else if (event < 95) {
    if (backup_ == nullptr) return;
    const bool lives = (faults_ == Faults::kTwoAlive || all) && Chance(60);
    const bool marked =
        faults_ != Faults::kCopies && Chance(faults_ == Faults::kRestores ? 100 : 60);
    Restart(CopyOf(backup_), marked || (faults_ == Faults::kCopies && Chance(40)), lives,
            "a copy of the backup starts");
  } else {
    const Disk disk = coordinators_.back()->disk();
    coordinators_.pop_back();
    coordinators_.push_back(std::make_shared<SimulatedCoordinator>(
        disk, clock_, [this] { return NewId(); }, false));
    Note("restart");
  }
}

int64_t History::RestorableStep(const Node* without, const std::string& part) const {
  std::map<std::pair<int64_t, int64_t>, std::set<int32_t>> ranks;  // by step and attempt
  for (const Node& node : nodes_) {
    if (&node == without || node.directory.empty()) continue;
    for (const auto& [job, step, attempt, rank] : SealedShards(node.directory + part)) {
      ranks[{step, attempt}].insert(rank);
    }
  }
  int64_t best = -1;
  for (const auto& [id, there] : ranks) {
    if (there.size() == kRanks) best = std::max(best, id.first);
  }
  return best;
}

std::string History::CheckNewest() {
  for (const Coordinator& one : coordinators_) {
    newest_ = std::max(newest_, one->CommittedStep(job_));
  }
  const int64_t restorable = RestorableStep(nullptr);
  if (restorable >= newest_) return "";
  return absl::StrCat("the checkpoint of step ", newest_, " is lost; the latest on disks is ",
                      restorable);
}

void History::Heal() {
  for (Node& node : nodes_) {
    if (node.worker == nullptr) ChangePresence(node);
  }
  // A person has to decide who continues where every coordinator that is alive was replaced.
  if (std::all_of(coordinators_.begin(), coordinators_.end(),
                  [](const Coordinator& one) { return one->replaced(); })) {
    const Disk disk = coordinators_.back()->disk();
    coordinators_.pop_back();
    coordinators_.push_back(std::make_shared<SimulatedCoordinator>(
        disk, clock_, [this] { return NewId(); }, true));
    Note("the last one starts with --restored");
  }
  const auto rounds = [this](int count) {
    for (int i = 0; i < count; ++i) {
      clock_.Advance(500);
      ExchangeSome(100);
      for (const Coordinator& one : coordinators_) one->Tick();
    }
  };
  rounds(25);
}

std::string History::CheckEnd() {
  const auto epochs = [this] {
    std::vector<int64_t> all;
    for (const Coordinator& one : coordinators_) all.push_back(one->epoch());
    return absl::StrJoin(all, ", ");
  };
  const std::string before = epochs();
  Heal();
  if (epochs() != before) {
    return absl::StrCat("the coordinators take the workers from each other: epochs ", before,
                        " became ", epochs());
  }
  Coordinator left;
  for (const Coordinator& one : coordinators_) {
    if (one->replaced()) continue;
    if (left != nullptr) return "two coordinators acknowledge changes";
    left = one;
  }
  if (left == nullptr) return "no coordinator is left that acknowledges changes";
  const int64_t known = left->CommittedStep(job_);
  const int64_t stored = RestorableStep(nullptr, "/jobs");
  if (known >= std::min(newest_, stored)) return "";
  return absl::StrCat("the coordinator knows checkpoints up to step ", known, "; stored is ",
                      stored);
}

std::string History::Story(const std::string& violation) const {
  std::string story = absl::StrCat(violation, "\n  ", absl::StrJoin(events_, "\n  "), "\n");
  for (const Coordinator& one : coordinators_) {
    absl::StrAppend(&story, "coordinator, epoch ", one->epoch(),
                    one->replaced() ? ", replaced" : "", ":\n  ", one->Catalogue(job_), "\n");
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    absl::StrAppend(&story, "w", i + 1,
                    node.directory.empty()   ? ", destroyed"
                    : node.worker == nullptr ? ", away:"
                                             : ":");
    for (const auto& [job, step, attempt, rank] : SealedShards(node.directory)) {
      absl::StrAppend(&story, " ", step, "/", attempt, "/", rank);
    }
    story += "\n";
  }
  return story;
}

std::string History::Run() {
  Begin();
  for (int i = 0; i < kEvents; ++i) {
    Event();
    if (const std::string lost = CheckNewest(); !lost.empty()) return Story(lost);
  }
  for (int i = 0; i < 3; ++i) Heal();
  if (const std::string lost = CheckNewest(); !lost.empty()) return Story(lost);
  const std::string end = CheckEnd();
  return end.empty() ? "" : Story(end);
}

}  // namespace nibble
