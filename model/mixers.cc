#include "model/mixers.h"

namespace nibble {

// Each in the file of its name.
extern const Mixer kAttentionMixer;
extern const Mixer kMlpMixer;
extern const Mixer kMamba2Mixer;

namespace {

constexpr const Mixer* kMixers[] = {
    &kAttentionMixer,
    &kMlpMixer,
    &kMamba2Mixer,
};

}  // namespace

std::span<const Mixer* const> AllMixers() { return kMixers; }

const Mixer* FindMixer(char symbol) {
  for (const Mixer* mixer : kMixers) {
    if (mixer->symbol == symbol) return mixer;
  }
  return nullptr;
}

}  // namespace nibble
