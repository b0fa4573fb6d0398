#include "common/metrics/program_table.h"

#include <filesystem>
#include <string>
#include <system_error>

#include "common/metrics/process_figures.h"

namespace nibble {

std::string RenderPage(const ProgramTable& table, MetricPage& page, const MetricBook& book,
                       const ProgramInfo& info) {
  const ProcessFigures figures = ReadProcessFigures();
  page.Set(table.build_info, {info.program, info.version}, 1);
  page.Set(table.start, {}, figures.start_unix_seconds);
  page.Set(table.cpu, {}, figures.cpu_seconds);
  page.Set(table.resident, {}, static_cast<double>(figures.resident_bytes));
  page.Set(table.threads, {}, static_cast<double>(figures.threads));
  page.Set(table.files, {}, static_cast<double>(figures.open_files));
  page.Set(table.max_files, {}, static_cast<double>(figures.max_open_files));
  std::error_code error;
  const std::filesystem::space_info disk =
      std::filesystem::space(std::filesystem::path(std::string(info.data_directory)), error);
  if (!error) {
    page.Set(table.disk_free, {},
             static_cast<double>(disk.available) + static_cast<double>(info.removable_bytes));
    page.Set(table.disk_size, {}, static_cast<double>(disk.capacity));
  }
  for (const CertificateTime& one : info.certificates) {
    page.Set(table.certificate_expiry, {one.certificate}, one.expires_unix_seconds);
  }
  page.Set(table.dropped, {}, static_cast<double>(page.dropped() + book.dropped()));
  return page.Render(book);
}

}  // namespace nibble
