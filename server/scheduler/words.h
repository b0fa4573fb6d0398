// The scheduler's reasons, as a person reads them. They say how long something still takes: the
// clock of a plan is monotonic and has no dates.
//
// Thread-safety: pure functions of a world that nobody changes meanwhile.
#ifndef NIBBLE_SERVER_SCHEDULER_WORDS_H_
#define NIBBLE_SERVER_SCHEDULER_WORDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/scheduler/world.h"

namespace nibble::scheduler {

std::string SpanWords(int64_t ms);                   // "90 s", "5 min", "30 h"; rounded up
std::string JobWords(const World& world, int job);   // "job train-7 (priority 5)"
std::string NeedWords(const World& world, int job);  // "needs 8 slots with device=cuda"

// Why no plan can start it on this cluster as it stands; "" where one could.
std::string NeverWords(const World& world, int job);

// "needs 8 slots with device=cuda; 6 free on 2 workers; waiting behind job train-7 (priority 5)".
// `behind`: -1: nobody is ahead. `due_ms`: 0: unknown. Counts what world.idle() shows.
std::string SlotsWords(const World& world, int job, int behind, int64_t due_ms);
// `over_queue`: the queue's limit is reached, otherwise the cohort's total is.
std::string QuotaWords(const World& world, int job, bool over_queue, int behind);
std::string BackOffWords(const World& world, int job);

std::string StartWords(const World& world, int job);
std::string VictimWords(const World& world, int job, int helps, bool shrinks);
std::string DrainWords(const World& world, int job, bool moves);

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_WORDS_H_
