// Names the file if a mapped file is truncated while it is read, which the system reports only as
// SIGBUS.
//
// Thread-safety: ReportTruncatedFiles, once at the beginning of a program; the rest from any
// thread.
#ifndef NIBBLE_COMMON_FILES_TRUNCATED_FILES_H_
#define NIBBLE_COMMON_FILES_TRUNCATED_FILES_H_

#include <cstddef>
#include <string>

namespace nibble {

// From now on a read behind the end of a file of NoteMapping ends the process at once, with
// `exit_code`, after "`prefix`PATH: truncated while it was read; ..." on standard error. Any other
// SIGBUS ends it as before. `prefix` is kept.
void ReportTruncatedFiles(const char* prefix, int exit_code);

// For MappedFile and SafetensorsFile.
void NoteMapping(const void* begin, size_t size, const std::string& path);
void ForgetMapping(const void* begin);

}  // namespace nibble

#endif  // NIBBLE_COMMON_FILES_TRUNCATED_FILES_H_
