#include "common/process/guard_testing.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace nibble::process_testing {
namespace {

constexpr int kSignalled = 128;  // plus the signal's number: an exit code, as in a shell

int ExitCodeOf(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : kSignalled + WTERMSIG(status);
}

void Require(bool done, const char* what) {
  if (done) return;
  std::perror(what);
  _exit(EXIT_FAILURE);
}

struct ChildProcess {
  pid_t pid = 0;
  std::string name;
};

// Children of this process that have not ended.
std::vector<ChildProcess> LivingChildren() {
  std::vector<ChildProcess> children;
  DIR* const processes = opendir("/proc");
  Require(processes != nullptr, "guard: /proc");
  while (const dirent* const entry = readdir(processes)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    std::ifstream file(std::string("/proc/") + entry->d_name + "/stat");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    // "pid (name) state parent …"; the name may contain parentheses.
    const size_t begin = text.find('(');
    const size_t end = text.rfind(')');
    if (end == std::string::npos || end + 4 >= text.size() || text[end + 2] == 'Z') continue;
    if (std::atoi(text.c_str() + end + 4) != getpid()) continue;
    children.push_back({.pid = pid, .name = text.substr(begin + 1, end - begin - 1)});
  }
  (void)closedir(processes);
  return children;
}

// The children of those that end become this process's own, so that all descendants are found.
void KillDescendants() {
  while (true) {
    for (const ChildProcess& child : LivingChildren()) {
      std::fprintf(stderr, "guard: the tests left process %d (%s) running; it is killed\n",
                   child.pid, child.name.c_str());
      (void)kill(child.pid, SIGKILL);
    }
    if (waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) return;
  }
}

// Waits until the tests or `parent` have ended; returns the exit code of the tests.
int AwaitEnd(pid_t tests, const sigset_t& signals, pid_t parent) {
  while (getppid() == parent) {
    int status = 0;
    for (pid_t ended = 0; (ended = waitpid(-1, &status, WNOHANG)) > 0;) {
      if (ended == tests) return ExitCodeOf(status);
    }
    (void)sigwaitinfo(&signals, nullptr);
  }
  return EXIT_FAILURE;
}

}  // namespace

void GuardProcesses() {
  // Blocked before there is anyone to wait for. The guard gets SIGTERM when its parent has ended.
  sigset_t signals, before;
  (void)sigemptyset(&signals);
  (void)sigaddset(&signals, SIGCHLD);
  (void)sigaddset(&signals, SIGTERM);
  Require(sigprocmask(SIG_BLOCK, &signals, &before) == 0, "guard: signals");
  const pid_t group = getpgrp();
  const pid_t parent = getpid();
  const pid_t guard = fork();
  Require(guard >= 0, "guard: fork");
  if (guard > 0) {
    (void)sigprocmask(SIG_SETMASK, &before, nullptr);
    int status = 0;
    while (waitpid(guard, &status, 0) < 0 && errno == EINTR) {
    }
    _exit(ExitCodeOf(status));
  }
  Require(setpgid(0, 0) == 0, "guard: process group");
  Require(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "guard: adopting orphans");
  Require(prctl(PR_SET_PDEATHSIG, SIGTERM) == 0, "guard: awaiting the parent");
  const pid_t guarding = getpid();
  const pid_t tests = fork();
  Require(tests >= 0, "guard: fork");
  if (tests > 0) {
    // Its terminal and the reader of its lines may be gone.
    for (const int ignored : {SIGHUP, SIGPIPE}) (void)signal(ignored, SIG_IGN);
    const int code = AwaitEnd(tests, signals, parent);
    KillDescendants();
    _exit(code);
  }
  Require(setpgid(0, group) == 0, "guard: process group of the tests");
  Require(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == guarding, "guard: the guard");
  (void)sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace nibble::process_testing
