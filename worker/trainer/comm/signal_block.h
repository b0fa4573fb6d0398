// Keeps signals away from threads whose code cannot take them.
//
// Thread-safety: affects only the calling thread and threads that it starts while the object lives.
#ifndef NIBBLE_WORKER_TRAINER_COMM_SIGNAL_BLOCK_H_
#define NIBBLE_WORKER_TRAINER_COMM_SIGNAL_BLOCK_H_

#include <signal.h>

#include <atomic>
#include <thread>

namespace nibble {

// Blocks all signals in this thread while alive. Threads started meanwhile keep them blocked, so
// that the program's handlers run on the program's own threads.
class BlockAllSignals {
 public:
  BlockAllSignals();
  ~BlockAllSignals();
  BlockAllSignals(const BlockAllSignals&) = delete;
  BlockAllSignals& operator=(const BlockAllSignals&) = delete;

 private:
  sigset_t before_;
};

// While alive, writing to a closed socket does not raise SIGPIPE in this thread.
class BlockSigpipe {
 public:
  BlockSigpipe();
  ~BlockSigpipe();
  BlockSigpipe(const BlockSigpipe&) = delete;
  BlockSigpipe& operator=(const BlockSigpipe&) = delete;

 private:
  sigset_t before_;
  bool was_pending_;
};

// While alive, SIGINT and SIGTERM set a flag, without a handler: a thread of its own waits for
// them. A handler would damage the heap: its frame is written below the stack pointer, and oneDNN's
// generated GEMMs keep the stack pointer in a buffer on the heap while they run. Afterwards the
// two stay blocked, so that a late one does not take the place of the exit code.
//
// A second SIGINT ends the process at once. A second SIGTERM does not: when one rank of a group has
// stopped, the launcher sends it to those that are about to.
class StopSignals {
 public:
  // `requested` must outlive this object.
  explicit StopSignals(std::atomic<bool>& requested);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  void Watch();

  std::atomic<bool>& requested_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

// After StopSignals, for a process that runs on without work: SIGINT and SIGTERM end it.
void TakeStopSignals();

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_SIGNAL_BLOCK_H_
