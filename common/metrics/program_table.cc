#include "common/metrics/program_table.h"

#include <string>

#include "common/metrics/process_figures.h"

namespace nibble {

std::string RenderPage(const ProgramTable& table, MetricPage& page, const MetricBook& book,
                       absl::string_view program, absl::string_view version) {
  const ProcessFigures figures = ReadProcessFigures();
  page.Set(table.build_info, {program, version}, 1);
  page.Set(table.start, {}, figures.start_unix_seconds);
  page.Set(table.cpu, {}, figures.cpu_seconds);
  page.Set(table.resident, {}, static_cast<double>(figures.resident_bytes));
  page.Set(table.threads, {}, static_cast<double>(figures.threads));
  page.Set(table.files, {}, static_cast<double>(figures.open_files));
  page.Set(table.max_files, {}, static_cast<double>(figures.max_open_files));
  page.Set(table.dropped, {}, static_cast<double>(page.dropped() + book.dropped()));
  return page.Render(book);
}

}  // namespace nibble
