// Random histories. --seeds N and --first S choose them; without, a few that take seconds.
// Prints how many histories of each kind of faults violate what must stay true, and the first one.
#include <stdlib.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/histories/history.h"

namespace nibble {
namespace {

uint64_t seeds = 120;
uint64_t first_seed = 1;

TEST(Histories, ACheckpointThatWasWholeAndNewestStaysRestorable) {
  std::map<Faults, int> violated;
  std::map<Faults, std::string> first;
  for (uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    const Faults faults = kAllFaults[seed % std::size(kAllFaults)];
    std::string root = absl::StrCat(
        std::filesystem::exists("/dev/shm") ? "/dev/shm" : testing::TempDir(), "/nibble-XXXXXX");
    ASSERT_NE(mkdtemp(root.data()), nullptr);
    std::string violation = History(seed, faults, root).Run();
    std::filesystem::remove_all(root);
    if (violation.empty()) continue;
    if (violated[faults]++ == 0) first[faults] = absl::StrCat("seed ", seed, ": ", violation);
  }
  for (const Faults faults : kAllFaults) {
    std::printf("%-10s %d of %d histories violate\n", NameOf(faults), violated[faults],
                static_cast<int>(seeds / std::size(kAllFaults)));
    EXPECT_EQ(violated[faults], 0) << NameOf(faults) << ", " << first[faults];
  }
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    uint64_t* const value =
        absl::StrContains(argv[i], "seeds") ? &nibble::seeds : &nibble::first_seed;
    if (!absl::SimpleAtoi(argv[i + 1], value)) {
      std::fprintf(stderr, "%s: '%s' is not a number\n", argv[i], argv[i + 1]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
