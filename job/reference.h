// docs/reference/job-spec.md, generated from the description of the fields.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_JOB_REFERENCE_H_
#define NIBBLE_JOB_REFERENCE_H_

#include <string>

namespace nibble {

std::string JobReferenceMarkdown();

}  // namespace nibble

#endif  // NIBBLE_JOB_REFERENCE_H_
