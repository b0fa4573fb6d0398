// Writes the report of a made-up run, for tests of the page in a browser and for docs/pictures.
//   write_sample STEPS BLOCKS PRECISION_EVERY > report.html
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "client/report/report_data.h"
#include "client/report/report_page.h"
#include "client/report/testing.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("arguments: STEPS BLOCKS PRECISION_EVERY\n", stderr);
    return 2;
  }
  const std::string page = nibble::ReportPage(nibble::ReportData(
      nibble::report_testing::MakeRun({.steps = std::atoll(argv[1]),
                                       .blocks = std::atoi(argv[2]),
                                       .precision_every = std::atoll(argv[3])})));
  return std::fwrite(page.data(), 1, page.size(), stdout) == page.size() ? 0 : 1;
}
