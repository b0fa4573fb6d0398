// A worker's topology as tables: its slots, and how their cards reach each other.
//
// Thread-safety: a pure function.
#ifndef NIBBLE_CLIENT_REMOTE_WORKER_TOPOLOGY_H_
#define NIBBLE_CLIENT_REMOTE_WORKER_TOPOLOGY_H_

#include <string>

#include "proto/nibble/v1/worker.pb.h"

namespace nibble {

// One row per slot: its card's PCI address, its NUMA node, the cores that its ranks run on, and, if
// there are links, the path to each other slot's card: NV18 for 18 NVLinks, then as nvidia-smi
// abbreviates them (PIX, PXB, PHB, NODE, SYS). Empty for an empty topology.
std::string TopologyTable(const v1::Topology& topology);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_WORKER_TOPOLOGY_H_
