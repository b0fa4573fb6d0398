"""Makes the fixtures of interop_test: a small random model of each class, saved by transformers,
and the logits that transformers computes from the saved files.

    python make_fixtures.py OUT_DIRECTORY

Each model gets a directory with config.json, its weights, and expected.safetensors: tokens
[length] I64 and logits [length, vocab] F32. versions.json records the versions of the packages.
Equal versions give equal bytes.

transformers clamps Mamba's time steps to at least config.time_step_min; Nibble's models have no such
bound. The fixture's time_step_min is 0, so that both compute the same function. Its dt_bias are
chosen so that the default bound of 0.001 would change the logits, which is checked below.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import (  # noqa: E402
    ArceeConfig,
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    NemotronHConfig,
)

VOCAB = 96
LENGTH = 21
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}

CONFIGS = {
    "nemotron_h": NemotronHConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        hybrid_override_pattern="M-*-M",
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=48,
        mamba_num_heads=8,
        mamba_head_dim=8,
        n_groups=2,
        ssm_state_size=8,
        conv_kernel=4,
        chunk_size=8,
        **NO_TOKENS,
    ),
    "llama": LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        **NO_TOKENS,
    ),
    "arcee": ArceeConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        **NO_TOKENS,
    ),
    "gpt2": GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=32, n_inner=80, **NO_TOKENS
    ),
}
# How the weights are saved: every supported type and kind of file occurs.
SAVED = {
    "nemotron_h": {"dtype": torch.float32},
    "llama": {"dtype": torch.bfloat16, "max_shard_size": "20KB"},
    "arcee": {"dtype": torch.float16},
    "gpt2": {"dtype": torch.float32},
}


def randomise(model, generator):
    """Random values for all parameters: zeros and ones would hide mistakes."""

    def normal(shape, scale):
        return scale * torch.randn(shape, generator=generator)

    def uniform(shape, low, high):
        return low + (high - low) * torch.rand(shape, generator=generator)

    with torch.no_grad():
        for name, p in model.named_parameters():
            last = name.split(".")[-1]
            if last == "A_log":
                p.copy_(torch.log(uniform(p.shape, 1, 16)))
            elif last == "dt_bias":
                # softplus of these is about 3e-5 to 0.3
                p.copy_(uniform(p.shape, -10.5, -1.0))
            elif last == "D" or (p.dim() == 1 and last == "weight"):
                p.copy_(1 + normal(p.shape, 0.2))
            elif p.dim() == 1:
                p.copy_(normal(p.shape, 0.2))
            else:
                p.copy_(normal(p.shape, 0.2))


def logits_of(directory, tokens, **config_changes):
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", **config_changes
    )
    model.eval()
    with torch.no_grad():
        return model(tokens[None], use_cache=False).logits[0]


def distance(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def make(name, out):
    directory = os.path.join(out, name)
    generator = torch.Generator().manual_seed(sum(name.encode()))
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    randomise(model, generator)
    saved = SAVED[name]
    model.to(saved["dtype"]).save_pretrained(
        directory, max_shard_size=saved.get("max_shard_size", "5GB")
    )
    os.remove(os.path.join(directory, "generation_config.json"))
    tokens = torch.randint(0, VOCAB, (LENGTH,), generator=generator)
    if name == "nemotron_h":
        path = os.path.join(directory, "config.json")
        with open(path) as f:
            config = json.load(f)
        bounded = logits_of(directory, tokens)
        config["time_step_min"] = 0.0
        with open(path, "w") as f:
            f.write(json.dumps(config, indent=2, sort_keys=True) + "\n")
        assert distance(bounded, logits_of(directory, tokens)) > 1e-3, "the bound has no effect"
    safetensors.torch.save_file(
        {"tokens": tokens, "logits": logits_of(directory, tokens).contiguous()},
        os.path.join(directory, "expected.safetensors"),
    )


def main():
    out = sys.argv[1]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name in CONFIGS:
        make(name, out)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    with open(os.path.join(out, "versions.json"), "w") as f:
        f.write(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
