// Jobs as people name them: by id, or by what only one id or name begins with.
//
// Ownership: the session is borrowed for the call. Thread-safety: as Session.
#ifndef NIBBLE_CLIENT_REMOTE_FIND_JOB_H_
#define NIBBLE_CLIENT_REMOTE_FIND_JOB_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/remote/verb.h"
#include "proto/nibble/v1/job.pb.h"

namespace nibble {

// Which of the jobs `given` means: the one of that id; else the only one of that name; else the
// only one whose id begins so. NotFound names what is near; InvalidArgument names those that it
// may mean, three at most.
absl::StatusOr<v1::Job> ChooseJob(const std::string& given, const std::vector<v1::Job>& jobs);

// Of the cluster.
absl::StatusOr<v1::Job> FindJob(Session& session, const std::string& given);
// Every job that the request asks for, page after page; its page is not read.
absl::StatusOr<std::vector<v1::Job>> ListAllJobs(Session& session, v1::ListJobsRequest request);

// The JOB of a verb, for FindJob.
void AddJobOption(CLI::App* verb, std::string& job);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_FIND_JOB_H_
