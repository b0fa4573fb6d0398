// How a job spec says where its ranks run and what a cluster does with the job: resources,
// scheduling, restarts, notifications, environment variables.
//
// Thread-safety: immutable tables, and a pure function.
#ifndef NIBBLE_JOB_CLUSTER_FIELDS_H_
#define NIBBLE_JOB_CLUSTER_FIELDS_H_

#include <string>

#include "job/job_spec.h"
#include "job/record.h"

namespace nibble {

const Record<ResourceSpec>& ResourceRecord();
const Record<SchedulingSpec>& SchedulingRecord();
const Record<RestartSpec>& RestartRecord();
const Record<NotifySpec>& NotifyRecord();

// What is wrong with an environment variable of the rank processes; empty: nothing.
std::string EnvironmentProblem(const NamedText& variable);

}  // namespace nibble

#endif  // NIBBLE_JOB_CLUSTER_FIELDS_H_
