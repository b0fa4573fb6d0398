// The thread that serves those who watch. One thread, of low priority: however many watches there
// are, and whatever they ask for, they share one core's worth of time at most, and only what the
// coordinator's changes and its workers leave of it.
//
// A watch asks for a turn; it gets one as soon as it has something to read. Turns go around, news
// and beginnings by turns, and beginnings that are under way before those that are not: so that few
// snapshots are kept at a time, and a reader who does not read keeps nobody waiting.
//
// Ownership: shares the watches that wait. Thread-safety: all methods; none of them waits for a
// turn to end but Settle and the destructor. Turns and tasks run in the pump's thread with no lock
// of it held.
#ifndef NIBBLE_SERVER_CONTROLLER_WATCH_PUMP_H_
#define NIBBLE_SERVER_CONTROLLER_WATCH_PUMP_H_

#include <condition_variable>
#include <functional>
#include <list>
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
  // Runs before any turn.
  void Run(std::function<void()> task);
  // Waits until every task so far is done, and the turn under way; not from a turn or a task.
  void Settle();

 private:
  using Watches = std::list<std::shared_ptr<Watch>>;

  void Serve();
  Watches TakeTurn();  // one watch, or none; with mutex_ held

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Watches ready_;    // may have news
  Watches begun_;    // read what they begin with
  Watches fresh_;    // have not begun
  Watches waiting_;  // had nothing to read when they asked
  std::vector<std::function<void()>> tasks_;
  bool news_next_ = true;
  bool woken_ = false;
  bool closing_ = false;

  std::thread thread_;  // last: it uses the above
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_WATCH_PUMP_H_
