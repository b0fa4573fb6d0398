// Blocks signals around library code that does not handle them.
//
// Thread-safety: affects only the calling thread and threads that it starts while the object lives.
#ifndef NIBBLE_WORKER_TRAINER_COMM_SIGNAL_BLOCK_H_
#define NIBBLE_WORKER_TRAINER_COMM_SIGNAL_BLOCK_H_

#include <signal.h>

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

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_SIGNAL_BLOCK_H_
