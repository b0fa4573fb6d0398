// The live view of a real run on a terminal.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/process/spawn.h"
#include "common/text/text.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

constexpr int kColumns = 100;
constexpr int kRows = 36;

// `nibble ARGUMENTS` on a terminal of kColumns by kRows.
class OnTerminal {
 public:
  OnTerminal(const std::string& server, const std::vector<std::string>& arguments)
      : user_(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    EXPECT_EQ(grantpt(user_), 0);
    EXPECT_EQ(unlockpt(user_), 0);
    const int terminal = open(ptsname(user_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct winsize size = {};
    size.ws_col = kColumns;
    size.ws_row = kRows;
    EXPECT_EQ(ioctl(user_, TIOCSWINSZ, &size), 0);
    SpawnOptions options = {
        .arguments = {NibbleProgram()},
        .environment = {{"NIBBLE_SERVER", server}, {"TERM", "xterm"}, {"LC_ALL", "C.UTF-8"}},
        .input = terminal,
        .output = terminal,
        .error = terminal};
    options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
    const absl::StatusOr<pid_t> child = SpawnProcess(options);
    EXPECT_EQ(child.status(), absl::OkStatus());
    child_ = child.value_or(-1);
    close(terminal);
  }
  ~OnTerminal() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      Wait();
    }
    close(user_);
  }

  // Reads until the output has all these texts, in any order.
  void Await(const std::vector<std::string>& texts) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    for (const std::string& text : texts) {
      while (output_.find(text) == std::string::npos) {
        pollfd ready = {.fd = user_, .events = POLLIN, .revents = 0};
        std::array<char, 4096> bytes;
        ASSERT_GT(poll(&ready, 1, static_cast<int>(kPatience / std::chrono::milliseconds(1))), 0)
            << text << " did not come:\n"
            << output_;
        const ssize_t got = read(user_, bytes.data(), bytes.size());
        ASSERT_GT(got, 0) << text << " did not come:\n" << output_;
        ASSERT_LT(std::chrono::steady_clock::now(), end) << text << " did not come";
        output_.append(bytes.data(), static_cast<size_t>(got));
      }
    }
  }
  void Type(const std::string& keys) {
    EXPECT_EQ(write(user_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Reads the rest of the output, so that the program never waits for room to write.
  int Wait() {
    std::array<char, 4096> bytes;
    for (ssize_t got = 0; (got = read(user_, bytes.data(), bytes.size())) > 0;) {
      output_.append(bytes.data(), static_cast<size_t>(got));
    }
    int status = 0;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  bool WaitsForReturn() const {
    struct termios mode = {};
    EXPECT_EQ(tcgetattr(user_, &mode), 0);
    return (mode.c_lflag & ICANON) != 0;
  }
  const std::string& output() const { return output_; }

 private:
  const int user_;  // the user's end
  pid_t child_ = -1;
  std::string output_;
};

// Without carriage returns and escape sequences.
std::string WithoutControls(absl::string_view line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\r') continue;
    if (line[i] != '\x1b') {
      text += line[i];
      continue;
    }
    // "\x1b[", parameters, and a letter.
    for (++i; i < line.size() && !absl::ascii_isalpha(static_cast<unsigned char>(line[i])); ++i) {
    }
  }
  return text;
}

TEST(JobView, ARealRunIsShownWithItsStepsRanksPrecisionAndReference) {
  ClusterBed bed({.workers = 2});
  const std::string reference = bed.Submit({.name = "base", .steps = 60, .recipe = "bf16"});
  bed.ExpectState(reference, v1::JOB_STATE_SUCCEEDED);
  const std::string job = bed.Submit({.ranks = 2, .steps = 1'000'000, .precision_every = 5});
  bed.ExpectStep(job, 60);
  (void)bed.Ask(kSetRecipe, RecipeChange(job, "fprop", "bf16"));
  bed.ExpectStep(job, 80);
  OnTerminal watch(bed.address(), {"job", "watch", job, "--reference", reference});
  watch.Await({"running", "% from " + reference, "timeline", "fprop=bf16", " ms\x1b[0m",
               "slowest: rank", "mean error", "gradient nvfp4", "committed", "\xe2\xa0"});
  EXPECT_FALSE(watch.WaitsForReturn());
  watch.Type("?");
  watch.Await({"none of them changes the job"});
  watch.Type("?q");
  EXPECT_EQ(watch.Wait(), 101);
  EXPECT_TRUE(watch.WaitsForReturn());
  EXPECT_EQ(bed.Describe(job).state(), v1::JOB_STATE_RUNNING);
  for (const absl::string_view line : absl::StrSplit(watch.output(), '\n')) {
    EXPECT_LT(WidthOf(WithoutControls(line)), static_cast<size_t>(kColumns)) << line;
  }
}

}  // namespace
}  // namespace nibble
