// Which free slots of a worker a gang takes: those that are closest to each other. Pure.
//
// Cards that NVLink connects are closest, then cards behind the same PCIe switch, and so on to
// cards of different NUMA nodes; CPU slots are close if they are on one node. Of equally close
// choices, the one that is farthest from the slots it leaves free is taken, so that what is left
// stays close together; then the lowest numbers.
//
// Thread-safety: a pure function.
#ifndef NIBBLE_SERVER_CONTROLLER_SLOT_CHOICE_H_
#define NIBBLE_SERVER_CONTROLLER_SLOT_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/nibble/v1/worker.pb.h"

namespace nibble {

// `count` of the slots `free`, which are ascending and at least as many; ascending. Without a
// description of all of them, or with more than 64, the first ones. The search is greedy from each
// free slot in turn.
std::vector<int32_t> CloseSlots(const v1::Topology& topology, const std::vector<int32_t>& free,
                                size_t count);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_SLOT_CHOICE_H_
