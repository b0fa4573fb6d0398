#include "worker/trainer/comm/launch_local.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/descriptor.h"
#include "common/errno_error.h"
#include "common/process/process.h"
#include "common/process/spawn.h"
#include "common/status_macros.h"
#include "worker/trainer/comm/rendezvous.h"
#include "worker/trainer/comm/tcp_store_server.h"

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kThisProgram[] = "/proc/self/exe";
constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

absl::Status SystemError(const std::string& what) {
  return ErrnoError(errno, absl::StrCat("launching ranks: ", what));
}

// While alive, the forwarded signals are read from fd() instead of being delivered.
class SignalsAsMessages {
 public:
  SignalsAsMessages() {
    sigset_t set;
    (void)sigemptyset(&set);
    for (const int signal : kForwarded) (void)sigaddset(&set, signal);
    (void)pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = OwnedDescriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~SignalsAsMessages() { (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsAsMessages(const SignalsAsMessages&) = delete;
  SignalsAsMessages& operator=(const SignalsAsMessages&) = delete;
  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_;
  OwnedDescriptor fd_;
};

// One running rank. The destructor reaps it and kills its process group.
class RankProcess {
 public:
  RankProcess() = default;
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess() {
    if (pid_ > 0) {
      Signal(SIGKILL);
      (void)Reap();
    }
  }

  absl::Status Start(const std::vector<std::string>& arguments, const sigset_t& signals);
  bool running() const { return pid_ > 0; }
  int fd() const { return handle_.fd(); }  // readable once it has ended
  // Also to what it has started itself.
  void Signal(int signal) const { (void)kill(-pid_, signal); }

  // Waits for the rank to end. Kills processes that it left behind before reaping it, while its
  // group id cannot be reused.
  RankExit Reap() {
    siginfo_t info;
    while (waitid(P_PID, pid_, &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
    Signal(SIGKILL);
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    handle_ = ProcessHandle();
    return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
            .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
  }

 private:
  pid_t pid_ = -1;
  ProcessHandle handle_;
};

absl::Status RankProcess::Start(const std::vector<std::string>& arguments,
                                const sigset_t& signals) {
  const absl::StatusOr<pid_t> pid = SpawnProcess({.arguments = arguments,
                                                  .program = kThisProgram,
                                                  .input = SpawnOptions::kInherit,
                                                  .group = SpawnOptions::Group::kOwn,
                                                  .dies_with_thread = true,
                                                  .blocked_signals = &signals});
  if (!pid.ok()) {
    return absl::Status(pid.status().code(), absl::StrCat("launching ranks: ", arguments[0], ": ",
                                                          std::string(pid.status().message())));
  }
  pid_ = *pid;
  // The library's own wrapper is not declared for C++ in Debian 12.
  handle_ = ProcessHandle(pid_);
  if (!handle_.valid()) return SystemError("pidfd_open");
  return absl::OkStatus();
}

// The ranks of a launch, from the first start to the last end.
class Launch {
 public:
  Launch(int ranks, std::chrono::milliseconds grace, const SignalsAsMessages& signals)
      : grace_(grace), signals_(signals), processes_(ranks) {
    result_.ranks.resize(ranks);
  }

  absl::Status Start(const LaunchOptions& options, const std::string& program,
                     const std::string& rendezvous) {
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      std::vector<std::string> arguments = {program};
      arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
      arguments.insert(arguments.end(), {"--rank", absl::StrCat(rank), "--world",
                                         absl::StrCat(options.ranks), "--rendezvous", rendezvous});
      NIBBLE_RETURN_IF_ERROR(processes_[rank].Start(arguments, signals_.before()));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<LaunchResult> WaitForAll() {
    std::vector<pollfd> polls;
    while (true) {
      polls.assign(1, {signals_.fd(), POLLIN, 0});
      for (const RankProcess& process : processes_) polls.push_back({process.fd(), POLLIN, 0});
      if (!std::any_of(processes_.begin(), processes_.end(),
                       [](const RankProcess& process) { return process.running(); })) {
        return result_;
      }
      if (poll(polls.data(), polls.size(), Timeout()) < 0 && errno != EINTR) {
        return SystemError("poll");
      }
      if (polls[0].revents != 0) Forward();
      Collect(polls);
      if (kill_at_ && Clock::now() >= *kill_at_) {
        SignalAll(SIGKILL);
        kill_at_.reset();
      }
    }
  }

 private:
  int Timeout() const {
    if (!kill_at_) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*kill_at_ - Clock::now());
    return static_cast<int>(std::clamp<int64_t>(left.count(), 0, std::numeric_limits<int>::max()));
  }

  void SignalAll(int signal) const {
    for (const RankProcess& process : processes_) {
      if (process.running()) process.Signal(signal);
    }
  }

  void Forward() {
    signalfd_siginfo info;
    while (read(signals_.fd(), &info, sizeof(info)) == sizeof(info)) {
      result_.forwarded_signal = static_cast<int>(info.ssi_signo);
      SignalAll(result_.forwarded_signal);
    }
  }

  void Collect(const std::vector<pollfd>& polls) {
    const bool stopping = result_.first_failed >= 0;
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      if (!processes_[rank].running() || polls[rank + 1].revents == 0) continue;
      RankExit& exit = result_.ranks[rank];
      exit = processes_[rank].Reap();
      exit.stopped = stopping;
      if (stopping || exit.ok()) continue;
      // Among the ranks that have ended, one killed by a signal is more likely the cause than one
      // that ended with an exit code.
      const int first = result_.first_failed;
      if (first < 0 || (result_.ranks[first].signal == 0 && exit.signal != 0)) {
        result_.first_failed = static_cast<int>(rank);
      }
    }
    if (!stopping && result_.first_failed >= 0) {
      SignalAll(SIGTERM);
      kill_at_ = Clock::now() + grace_;
    }
  }

  const std::chrono::milliseconds grace_;
  const SignalsAsMessages& signals_;
  std::vector<RankProcess> processes_;
  LaunchResult result_;
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace

bool LaunchResult::ok() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankExit& exit) { return exit.ok(); });
}

std::string LaunchResult::Describe() const {
  if (ok()) return absl::StrCat("all ", ranks.size(), " ranks succeeded");
  std::vector<int> stopped;
  std::string text;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankExit& exit = ranks[rank];
    if (exit.stopped) {
      stopped.push_back(static_cast<int>(rank));
    } else if (!exit.ok()) {
      absl::StrAppend(&text, text.empty() ? "" : "; ", "rank ", rank);
      if (exit.signal != 0) {
        absl::StrAppend(&text, " was killed by signal ", exit.signal, " (", strsignal(exit.signal),
                        ")");
      } else {
        absl::StrAppend(&text, " ended with exit code ", exit.exit_code);
      }
    }
  }
  if (!stopped.empty()) {
    absl::StrAppend(&text, "; ", NameRanks(stopped),
                    stopped.size() == 1 ? " was stopped" : " were stopped");
  }
  return text;
}

absl::StatusOr<LaunchResult> LaunchLocal(const LaunchOptions& options) {
  if (options.ranks < 1 || options.ranks > kMaxLocalRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks = ", options.ranks, " is not in [1, ", kMaxLocalRanks, "]"));
  }
  std::error_code error;
  const std::string program = std::filesystem::read_symlink(kThisProgram, error).string();
  if (error) return ErrnoError(error.value(), "reading", kThisProgram);
  const SignalsAsMessages signals;
  if (signals.fd() < 0) return SystemError("signalfd");
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<TcpStoreServer> server,
                          TcpStoreServer::Start("127.0.0.1:0"));
  Launch launch(options.ranks, options.grace, signals);
  NIBBLE_RETURN_IF_ERROR(launch.Start(
      options, program, absl::StrCat(Rendezvous::kServedPrefix, "127.0.0.1:", server->port())));
  return launch.WaitForAll();
}

}  // namespace nibble
