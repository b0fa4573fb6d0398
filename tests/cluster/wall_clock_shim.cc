// For tests: an LD_PRELOAD library that gives a process a wall clock of its own, which can be set
// while it runs. The monotonic clock stays the machine's.
//
// NIBBLE_TEST_WALL_CLOCKS names a directory with a file per simulated machine: the offset of its
// wall clock in nanoseconds, an int64 in native byte order (cluster_bed.h writes it). The machine
// of a daemon is its --name, which its ranks inherit; every other process is "coordinator".
//
// Waits of system calls until a wall-clock time are converted, so that they last as long as on a
// machine with that clock.
//
// Ownership: the mapping stays until the process ends. Thread-safety: all functions.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int64_t kNanos = 1'000'000'000;
constexpr char kDirectory[] = "NIBBLE_TEST_WALL_CLOCKS";
constexpr char kMachine[] = "NIBBLE_TEST_WALL_CLOCK_OF";

template <class Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::atomic<const int64_t*> ahead_of_machine = nullptr;

// The value after --name among the arguments.
std::string NameAmongArguments() {
  const int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  std::string text;
  char part[4096];
  for (ssize_t count = 0; (count = read(file, part, sizeof part)) > 0;) {
    text.append(part, static_cast<size_t>(count));
  }
  close(file);
  const std::string key("\0--name\0", 8);
  const size_t at = text.find(key);
  return at == std::string::npos ? "" : std::string(text.c_str() + at + key.size());
}

__attribute__((constructor)) void Begin() {
  const char* const directory = getenv(kDirectory);
  if (directory == nullptr) return;
  std::string machine = NameAmongArguments();
  if (machine.empty() && getenv(kMachine) != nullptr) machine = getenv(kMachine);
  if (machine.empty()) machine = "coordinator";
  setenv(kMachine, machine.c_str(), 1);
  const int file = open((std::string(directory) + "/" + machine).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  void* const mapped = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) ahead_of_machine = static_cast<const int64_t*>(mapped);
}

int64_t AheadNanos() {
  const int64_t* const ahead = ahead_of_machine.load();
  return ahead == nullptr ? 0 : __atomic_load_n(ahead, __ATOMIC_RELAXED);
}

timespec Shifted(const timespec& time, int64_t nanos) {
  const int64_t all = time.tv_sec * kNanos + time.tv_nsec + nanos;
  const int64_t seconds = all / kNanos - (all % kNanos < 0 ? 1 : 0);
  return {.tv_sec = seconds, .tv_nsec = all - seconds * kNanos};
}

bool IsWall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) {
  static auto* const real = Real<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, time);
  if (result == 0 && IsWall(clock)) *time = Shifted(*time, AheadNanos());
  return result;
}

int gettimeofday(timeval* time, void* /*zone*/) {
  timespec now = {};
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return result;
}

time_t time(time_t* out) {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  static auto* const real =
      Real<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
  const timespec kernels = Shifted(*until, -AheadNanos());
  return real(condition, mutex, &kernels);
}

long syscall(long number, ...) {  // NOLINT: the signature of unistd.h
  static auto* const real = Real<long(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long given[6];
  for (long& one : given) one = va_arg(list, long);
  va_end(list);
  timespec kernels = {};
  constexpr int kOperation = 1, kUntil = 3;
  const bool waits = number == SYS_futex && (given[kOperation] & FUTEX_CLOCK_REALTIME) != 0;
  if (waits && given[kUntil] != 0) {
    kernels = Shifted(*reinterpret_cast<const timespec*>(given[kUntil]), -AheadNanos());
    given[kUntil] = reinterpret_cast<long>(&kernels);
  }
  return real(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

}  // extern "C"
