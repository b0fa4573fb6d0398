#include "worker/trainer/comm/rank_processes_testing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <new>

#include "gtest/gtest.h"
#include "worker/trainer/comm/rendezvous.h"
#include "worker/trainer/comm/tcp_store_server.h"

namespace nibble {

namespace {

using Clock = std::chrono::steady_clock;

sigset_t OnlySigchld() {
  sigset_t set;
  (void)sigemptyset(&set);
  (void)sigaddset(&set, SIGCHLD);
  return set;
}

}  // namespace

std::vector<RankOutcome> RunRanks(int world, absl::FunctionRef<void(int rank)> body,
                                  std::chrono::milliseconds deadline) {
  const sigset_t child = OnlySigchld();
  sigset_t before;
  (void)pthread_sigmask(SIG_BLOCK, &child, &before);
  std::fflush(nullptr);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
      body(rank);
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    EXPECT_GT(pid, 0) << "fork of rank " << rank << " failed: " << errno;
    pids.push_back(pid);
  }
  std::vector<RankOutcome> outcomes(world);
  const Clock::time_point end = Clock::now() + deadline;
  int running = world;
  while (running > 0) {
    for (int rank = 0; rank < world; ++rank) {
      int status = 0;
      if (pids[rank] <= 0 || waitpid(pids[rank], &status, WNOHANG) != pids[rank]) continue;
      outcomes[rank] = {WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                        WIFSIGNALED(status) ? WTERMSIG(status) : 0};
      pids[rank] = 0;
      --running;
    }
    if (running == 0) break;
    const auto left = std::chrono::nanoseconds(end - Clock::now());
    const timespec wait = {.tv_sec = left.count() / 1'000'000'000,
                           .tv_nsec = left.count() % 1'000'000'000};
    if (left.count() <= 0 || (sigtimedwait(&child, nullptr, &wait) < 0 && errno == EAGAIN)) {
      for (const pid_t pid : pids) {
        if (pid > 0) (void)kill(pid, SIGKILL);
      }
      ADD_FAILURE() << running << " of " << world << " ranks were still running at the deadline";
      for (int rank = 0; rank < world; ++rank) {
        if (pids[rank] <= 0) continue;
        (void)waitpid(pids[rank], nullptr, 0);
        outcomes[rank].signal = SIGKILL;
      }
      break;
    }
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return outcomes;
}

void ExpectRanks(int world, absl::FunctionRef<void(int rank)> body) {
  const std::vector<RankOutcome> outcomes = RunRanks(world, body);
  for (int rank = 0; rank < world; ++rank) {
    EXPECT_EQ(outcomes[rank].exit_code, 0) << "rank " << rank << " of " << world;
    EXPECT_EQ(outcomes[rank].signal, 0) << "rank " << rank << " of " << world;
  }
}

RendezvousProcess::RendezvousProcess() {
  int report[2];  // brings the server's port
  EXPECT_EQ(pipe(report), 0);
  pid_ = fork();
  if (pid_ == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto server = TcpStoreServer::Start("127.0.0.1:0");
    const uint16_t port = server.ok() ? (*server)->port() : 0;
    (void)!write(report[1], &port, sizeof(port));
    while (true) pause();
  }
  EXPECT_GT(pid_, 0) << errno;
  uint16_t port = 0;
  EXPECT_EQ(read(report[0], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  EXPECT_NE(port, 0);
  for (const int fd : report) (void)close(fd);
  address_ = Rendezvous::kServedPrefix + ("127.0.0.1:" + std::to_string(port));
}

RendezvousProcess::~RendezvousProcess() {
  if (pid_ <= 0) return;
  (void)kill(pid_, SIGKILL);
  (void)waitpid(pid_, nullptr, 0);
}

ReservedPort::ReservedPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  // Bound but not listening: with this option on both sides a server may bind the same port.
  const int on = 1;
  EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0) << errno;
  EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
  port_ = ntohs(address.sin_port);
}

ReservedPort::~ReservedPort() { (void)close(fd_); }

std::string ReservedPort::host_port() const { return "127.0.0.1:" + std::to_string(port_); }

SharedCounter::SharedCounter() {
  void* const memory =
      mmap(nullptr, sizeof(*value_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED) << errno;
  value_ = new (memory) std::atomic<int64_t>(0);
}

SharedCounter::~SharedCounter() { (void)munmap(value_, sizeof(*value_)); }

Gate::Gate() { EXPECT_EQ(pipe(fds_), 0); }

Gate::~Gate() {
  (void)close(fds_[0]);
  (void)close(fds_[1]);
}

void Gate::Open() { EXPECT_EQ(write(fds_[1], "x", 1), 1); }

bool Gate::Wait(std::chrono::milliseconds patience) const {
  pollfd one = {fds_[0], POLLIN, 0};  // never read, so that it stays open
  const Clock::time_point end = Clock::now() + patience;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    const int ready = poll(&one, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

}  // namespace nibble
