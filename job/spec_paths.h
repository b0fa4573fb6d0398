// Where the paths of a spec lead when it is sent from where it was written to where it runs.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_JOB_SPEC_PATHS_H_
#define NIBBLE_JOB_SPEC_PATHS_H_

#include <string>

#include "job/job_spec.h"

namespace nibble {

// Puts `directory` before every path that is read and is relative. True where there was one. The
// output directory is left alone: it is the worker's to choose.
bool MakePathsAbsolute(const std::string& directory, JobSpec& spec);

}  // namespace nibble

#endif  // NIBBLE_JOB_SPEC_PATHS_H_
