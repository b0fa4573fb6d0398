#include "worker/trainer/comm/signal_block.h"

#include <time.h>

#include <cerrno>

namespace nibble {
namespace {

bool SigpipePending() {
  sigset_t pending;
  (void)sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

sigset_t OnlySigpipe() {
  sigset_t set;
  (void)sigemptyset(&set);
  (void)sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

BlockAllSignals::BlockAllSignals() {
  sigset_t all;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_BLOCK, &all, &before_);
}

BlockAllSignals::~BlockAllSignals() { (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

BlockSigpipe::BlockSigpipe() : was_pending_(SigpipePending()) {
  const sigset_t set = OnlySigpipe();
  (void)pthread_sigmask(SIG_BLOCK, &set, &before_);
}

BlockSigpipe::~BlockSigpipe() {
  // Discards a signal raised meanwhile, which would be delivered when unblocked.
  if (!was_pending_ && SigpipePending()) {
    const sigset_t set = OnlySigpipe();
    const timespec now = {};
    while (sigtimedwait(&set, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace nibble
