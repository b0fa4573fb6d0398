// The life of a job as OpenTelemetry spans, in the JSON form of OTLP
// (opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding"): ids are hexadecimal, 64-bit
// integers are texts, enumerations are numbers.
//
//   job train-7                       from the submission to the end
//     queued, starting, …             each time in a state, from the events
//     attempt 2                       from the launch to the end
//       launch                        until all ranks run
//       ranks 0 to 3 on w1            of each worker, until the attempt's end
//       checkpoint of step 400        from its first shard to its commit
//
// Every other event of the job is an event of its attempt's span, or of the job's. A span that has
// not ended ends now. Ids depend only on the job, so an earlier trace of the same job is
// superseded.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_EXPORT_OTLP_TRACE_H_
#define NIBBLE_CLIENT_EXPORT_OTLP_TRACE_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "proto/nibble/v1/checkpoint.pb.h"
#include "proto/nibble/v1/job.pb.h"

namespace nibble {

struct JobLife {
  v1::Job job;
  std::vector<v1::JobEvent> events;  // oldest first
  std::vector<v1::Checkpoint> checkpoints;
  int64_t now_unix_ms = 0;
  std::string version;  // of the program that writes the trace
};

// An ExportTraceServiceRequest, which is also the line of a file of OpenTelemetry's file exporter.
nlohmann::ordered_json OtlpTrace(const JobLife& life);

// The number of spans in it.
int64_t SpansOf(const nlohmann::ordered_json& trace);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_EXPORT_OTLP_TRACE_H_
