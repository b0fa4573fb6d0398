// The thread that serves those who watch. One thread, of low priority: however many watches there
// are, and whatever they ask for, they share one core's worth of time at most, and only what the
// coordinator's changes and its workers leave of it.
//
// A watch asks for a turn; it gets one as soon as it has something to read. Turns go around, news
// and beginnings by turns. Few watches read their beginnings at a time, and the others after them:
// so that each of them ends soon, and few snapshots are kept. A reader who does not read does not
// count among the few.
//
// Ownership: shares the watches that wait. Thread-safety: all methods; none of them waits for a
// turn to end but Settle and the destructor. Turns and tasks run in the pump's thread with no lock
// of it held.
#ifndef NIBBLE_SERVER_CONTROLLER_WATCH_PUMP_H_
#define NIBBLE_SERVER_CONTROLLER_WATCH_PUMP_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/controller/watch.h"

namespace nibble {

class WatchPump {
 public:
  WatchPump();
  ~WatchPump();  // runs the tasks that wait
  WatchPump(const WatchPump&) = delete;
  WatchPump& operator=(const WatchPump&) = delete;

  // `Notify` of the watch is called once, as soon as it has something to read or is over.
  void Ask(std::shared_ptr<Watch> watch);
  // There may be something to read for those who had nothing.
  void Wake();
  // The watch is closed: another may begin in its place.
  void Release(const std::shared_ptr<Watch>& watch);
  // Those that have read nothing of their beginnings since the last call count among the few no
  // more.
  void PassSlowBy();
  // Runs before any turn.
  void Run(std::function<void()> task);
  // Waits until every task so far is done, and the turn under way; not from a turn or a task.
  void Settle();

 private:
  using Watches = std::list<std::shared_ptr<Watch>>;

  static constexpr size_t kBeginnings = 16;  // read at a time

  void Serve();
  // With mutex_ held.
  bool MayBegin() const { return !fresh_.empty() && beginning_.size() < kBeginnings; }
  Watches TakeTurn();  // one watch, or none

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Watches ready_;                                        // may have news
  Watches begun_;                                        // read what they begin with
  Watches fresh_;                                        // have not begun
  Watches waiting_;                                      // had nothing to read when they asked
  std::map<std::shared_ptr<Watch>, int64_t> beginning_;  // those few, and what they had read
  std::vector<std::function<void()>> tasks_;
  bool news_next_ = true;
  bool woken_ = false;
  bool closing_ = false;

  std::thread thread_;  // last: it uses the above
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_WATCH_PUMP_H_
