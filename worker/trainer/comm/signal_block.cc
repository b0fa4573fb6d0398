#include "worker/trainer/comm/signal_block.h"

#include <time.h>

#include <cerrno>
#include <initializer_list>

namespace nibble {
namespace {

bool SigpipePending() {
  sigset_t pending;
  (void)sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

sigset_t SetOf(std::initializer_list<int> signals) {
  sigset_t set;
  (void)sigemptyset(&set);
  for (const int signal : signals) (void)sigaddset(&set, signal);
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
  const sigset_t set = SetOf({SIGPIPE});
  (void)pthread_sigmask(SIG_BLOCK, &set, &before_);
}

BlockSigpipe::~BlockSigpipe() {
  // Discards a signal raised meanwhile, which would be delivered when unblocked.
  if (!was_pending_ && SigpipePending()) {
    const sigset_t set = SetOf({SIGPIPE});
    const timespec now = {};
    while (sigtimedwait(&set, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

StopSignals::StopSignals(std::atomic<bool>& requested) : requested_(requested) {
  // A shell may have started this process with SIGINT ignored.
  (void)signal(SIGINT, SIG_DFL);
  const sigset_t set = SetOf({SIGINT, SIGTERM});
  (void)pthread_sigmask(SIG_BLOCK, &set, nullptr);
  const BlockAllSignals in_new_threads;
  thread_ = std::thread([this] { Watch(); });
}

StopSignals::~StopSignals() {
  ending_.store(true, std::memory_order_release);
  (void)pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void StopSignals::Watch() {
  sigset_t set = SetOf({SIGINT, SIGTERM});
  int signal = 0;
  while (sigwait(&set, &signal) == 0 && !ending_.load(std::memory_order_acquire)) {
    requested_.store(true, std::memory_order_relaxed);
    if (signal != SIGINT) continue;
    const sigset_t interrupt = SetOf({SIGINT});
    (void)pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr);
    set = SetOf({SIGTERM});
  }
}

void TakeStopSignals() {
  (void)signal(SIGINT, SIG_DFL);
  (void)signal(SIGTERM, SIG_DFL);
  const sigset_t set = SetOf({SIGINT, SIGTERM});
  (void)pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace nibble
