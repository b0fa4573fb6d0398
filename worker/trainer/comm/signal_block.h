// Keeps signals away from library code that is not written for them.
//
// Thread-safety: affects the calling thread and the threads it starts meanwhile, no other.
#ifndef NIBBLE_WORKER_TRAINER_COMM_SIGNAL_BLOCK_H_
#define NIBBLE_WORKER_TRAINER_COMM_SIGNAL_BLOCK_H_

#include <signal.h>

namespace nibble {

// While alive, no signal reaches this thread. Threads started meanwhile stay so: the program's
// handlers then run on the program's own threads.
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

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_SIGNAL_BLOCK_H_
