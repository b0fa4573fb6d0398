#!/usr/bin/env python3
"""A peer: the same hybrid Mamba-2 model as `transformers` trains it on the CPU, BF16 autocast.

Prints one JSON line: tokens per second (median and spread over steps), step milliseconds and peak
memory. Needs PyTorch and transformers, which Nibble itself does not.
"""

import argparse
import json
import resource
import statistics
import sys
import time

import torch
import transformers
from transformers import NemotronHConfig, NemotronHForCausalLM

KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--pattern", default="M-M-M-M*-M-M-M-M*-M-M-M-")
    for name, default in (("d-model", 256), ("d-ff", 1024), ("heads", 4), ("kv-heads", 2),
                          ("head-dim", 64), ("mamba-heads", 32), ("mamba-head-dim", 16),
                          ("mamba-groups", 1), ("mamba-state", 48), ("chunk", 64), ("vocab", 272),
                          ("sequence", 512), ("batch", 8), ("steps", 5), ("threads", 0)):
        p.add_argument("--" + name, type=int, default=default)
    a = p.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    config = NemotronHConfig(
        vocab_size=a.vocab, hidden_size=a.d_model, intermediate_size=a.d_ff,
        layers_block_type=[KINDS[c] for c in a.pattern],
        num_attention_heads=a.heads, num_key_value_heads=a.kv_heads, head_dim=a.head_dim,
        mamba_num_heads=a.mamba_heads, mamba_head_dim=a.mamba_head_dim, n_groups=a.mamba_groups,
        ssm_state_size=a.mamba_state, conv_kernel=4, chunk_size=a.chunk,
        expand=a.mamba_heads * a.mamba_head_dim // a.d_model, tie_word_embeddings=False,
        max_position_embeddings=a.sequence, use_cache=False)
    model = NemotronHForCausalLM(config)
    parameters = sum(x.numel() for x in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0.1, fused=True)
    tokens = torch.randint(0, a.vocab, (a.batch, a.sequence))
    seconds = []
    for step in range(a.steps + 1):
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= 1:
            seconds.append(time.perf_counter() - begin)
    n = a.batch * a.sequence
    print(json.dumps({
        "peer": f"transformers {transformers.__version__} NemotronH eager",
        "threads": torch.get_num_threads(),
        "parameters": parameters,
        "tokens_per_s": n / statistics.median(seconds),
        "tokens_per_s_least": n / max(seconds),
        "tokens_per_s_most": n / min(seconds),
        "step_ms": 1e3 * statistics.median(seconds),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "loss": loss.item(),
    }))


if __name__ == "__main__":
    sys.exit(main())
