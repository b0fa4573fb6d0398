"""NVFP4 weights of Nibble and of the packages around compressed-tensors; for parity_check.py.

  llm-compressor      the same model quantised by its NVFP4A16 scheme, by `nibble quantize` and by
                      `nibble checkpoint export`: codes and block scales, byte by byte
  compressed-tensors  the logits of a packed export that transformers loads through it, against
                      Nibble's logits with the dequantised weights of `nibble quantize`

Each comparison is repeated on a damaged copy, which must differ.
"""

import json
import os
import re
import shutil

import numpy as np
import torch
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from make_fixtures import NO_TOKENS, randomise
from parity_table import Row, check, nibble
from safetensors.torch import load_file, save_file
from transformers import (
    ArceeConfig,
    AutoModelForCausalLM,
    CompressedTensorsConfig,
    LlamaConfig,
    NemotronHConfig,
)

# Of logits, relative to the largest: the rounding of FP32 sums, as in live_check.py.
LOGITS_TOLERANCE = 1e-4
# The most FP32 operations between a weight and the quotient that is rounded to a code or a block
# scale: two for the global scales of Nibble and llm-compressor and one between them, two more.
ROUNDINGS = 5
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
E4M3 = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()

SHARED = {"vocab_size": 272, "hidden_size": 256, "head_dim": 64, **NO_TOKENS}
SHARED |= {"num_attention_heads": 4, "num_key_value_heads": 2}
MAMBA = {"mamba_num_heads": 16, "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 32}
SPEC = {"vocab": 272, "d_model": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "norm_eps": 1e-5}
ROPE = {"pattern": "*-*-", "positions": "rope", "rope_theta": 10000}
# The quantised model, for transformers and in a job's spec.
MODELS = {
    "llama": (
        LlamaConfig(**SHARED, intermediate_size=448, num_hidden_layers=2, rms_norm_eps=1e-5),
        {**SPEC, **ROPE, "d_ff": 448, "activation": "swiglu"},
    ),
    "arcee": (
        ArceeConfig(**SHARED, intermediate_size=512, num_hidden_layers=2),
        {**SPEC, **ROPE, "d_ff": 512, "activation": "relu2"},
    ),
    "nemotron_h": (
        NemotronHConfig(**SHARED, **MAMBA, intermediate_size=512, hybrid_override_pattern="M-*-M"),
        {**SPEC, "pattern": "M-*-M", "d_ff": 512, "activation": "relu2", "mamba_heads": 16}
        | {"mamba_head_dim": 32, "mamba_groups": 2, "mamba_state": 32},
    ),
}
PARTS = ("weight_packed", "weight_scale", "weight_global_scale")

def tensors_of(directory):
    tensors = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".safetensors"):
            tensors.update(load_file(os.path.join(directory, name)))
    return tensors


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy()


def flipped(tensor, bit=1):
    """A copy with one bit flipped in the middle."""
    copy = tensor.clone()
    copy.view(torch.uint8).view(-1)[copy.nbytes // 2] ^= bit
    return copy


# llm-compressor


def packed_modules(tensors):
    """{module: {part: tensor}} of a model in nvfp4-pack-quantized."""
    modules = [k.removesuffix(".weight_packed") for k in tensors if k.endswith(".weight_packed")]
    return {m: {part: tensors[f"{m}.{part}"] for part in PARTS} for m in modules}


def quantised_by_verb(program, weights, work):
    """The same by `nibble quantize`, and {module: dequantised F32}. Linears that engines fuse share
    one scale, so they are quantised as one matrix."""
    groups = {}
    for module in weights:
        joined = re.sub(r"\.[qkv]_proj$", ".qkv", module)
        if re.sub(r"\.up_proj$", ".gate_proj", joined) in weights:
            joined = re.sub(r"\.(gate|up)_proj$", ".gate_up", joined)
        groups.setdefault(joined, []).append(module)
    source, target = os.path.join(work, "joined"), os.path.join(work, "quantised")
    matrices = {g: torch.cat([weights[m] for m in modules]) for g, modules in groups.items()}
    save_file(matrices, source)
    nibble(program, "quantize", source, target, "--format", "nvfp4", "--threads", "1")
    made, packed, dequantised = load_file(target), {}, {}
    for group, modules in groups.items():
        rows = [len(weights[module]) for module in modules]
        split = [made[f"{group}.{part}"].split(rows) for part in ("codes", "scales", "dequantized")]
        scale = np.float32(2688) / made[f"{group}.amax"].numpy()
        for module, codes, scales, values in zip(modules, *split):
            packed[module] = dict(zip(PARTS, (codes, scales, torch.from_numpy(scale))))
            dequantised[module] = values
    return packed, dequantised


def exported_packed(program, source, model, work):
    """The directory of the NVFP4 export of a job initialised from `source`."""
    run, target = os.path.join(work, "run"), os.path.join(work, "packed")
    spec = {"name": "parity", "model": model, "recipe": "nvfp4-base", "output": {"directory": run}}
    spec |= {"data": {"train": ["README.md"], "sequence": 64}}
    spec |= {"training": {"steps": 1, "batch": 1}}
    path = os.path.join(work, "spec.yaml")
    with open(path, "w") as f:
        json.dump(spec, f)
    nibble(program, "checkpoint", "import", source, "--spec", path)
    nibble(program, "checkpoint", "export", run, target, "--recipe", "nvfp4-base")
    return target


def first_difference(theirs, ours):
    """The first differing code or block scale, by name; None if all bytes are equal."""
    if theirs.keys() != ours.keys():
        return f"other linears: {sorted(theirs.keys() ^ ours.keys())[:4]}"
    for module in theirs:
        for part in PARTS[:2]:
            a, b = raw(theirs[module][part]), raw(ours[module][part])
            if a.shape != b.shape:
                return f"{module}.{part}: shape {a.shape}, here {b.shape}"
            if (a != b).any():
                at = tuple(int(i) for i in np.argwhere(a != b)[0])
                return f"{module}.{part}{list(at)}: {a[at]:#04x}, here {b[at]:#04x}"
    return None


def beyond_nearest(exact, chosen, grid):
    """The most by which another value of the grid is nearer to `exact`, relative to it; [n] each."""
    nearest = np.abs(exact[:, None] - grid).min(1)
    return float(((np.abs(exact - chosen) - nearest) / np.maximum(np.abs(exact), 1e-30)).max())


def worst_rounding(weight, tensors, scale_of):
    """The largest distance of a linear's codes and block scales from the nearest to their quotients,
    in FP32 roundings (2^-24). `scale_of`: the global scale of the quotients."""
    blocks = weight.double().numpy().reshape(-1, 16)
    scale = tensors[PARTS[1]].double().numpy().reshape(-1)
    packed = tensors[PARTS[0]].numpy().reshape(-1, 8)
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(-1, 16)
    g = float(scale_of)
    # Negative for a code of the other sign.
    exact = blocks * np.where(codes & 8, -1, 1) * g / scale[:, None]
    worst = beyond_nearest(exact.ravel(), E2M1[codes & 7].ravel(), E2M1)
    worst = max(worst, beyond_nearest(np.abs(blocks).max(1) / 6 * g, scale, E4M3))
    # A shift of the quotient changes both distances.
    return worst * 2**24 / 2


def check_global_scales(theirs, ours):
    """The number of equal ones. PyTorch divides a number by a tensor as number · (1 / tensor) and
    so rounds twice, Nibble rounds 2688 / amax once: between them a last place or two. Both follow
    from one amax."""
    equal = 0
    for module in theirs:
        a, b = (side[module][PARTS[2]].numpy() for side in (theirs, ours))
        amax = np.float32(2688) / b
        near = (np.nextafter(amax, np.float32(0)), amax, np.nextafter(amax, np.float32(np.inf)))
        derived = [x for x in near if (np.float32(2688) / x == b).all()]
        if not any((np.float32(2688) * (np.float32(1) / x) == a).all() for x in derived):
            raise RuntimeError(f"{module}: the global scale is {a}, here {b}")
        equal += int((a == b).all())
    return equal


def llm_compressor(source, target, dtype):
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    recipe = QuantizationModifier(targets="Linear", scheme="NVFP4A16", ignore=["lm_head"])
    oneshot(model=model, recipe=recipe)
    model.save_pretrained(target, save_compressed=True)
    return packed_modules(tensors_of(target))


def differing(theirs, ours, part):
    return sum(int((raw(t[part]) != raw(ours[m][part])).sum()) for m, t in theirs.items())


def check_damage(name, theirs, ours, weights):
    for part in PARTS[:2]:
        damaged = {module: dict(tensors) for module, tensors in ours.items()}
        module = list(damaged)[-1]
        damaged[module][part] = flipped(damaged[module][part])
        seen = first_difference(theirs, damaged)
        check(f"{name}, a flipped bit of {part} shows", seen is not None, seen)
        scale = ours[module][PARTS[2]]
        worst = worst_rounding(weights[module], damaged[module], scale)
        check(f"{name}, it is no rounding", worst > ROUNDINGS, f"{worst:.0f} FP32 roundings")


def check_llm_compressor(program, work, dtype):
    """Weights drawn in FP32 are hardly ever at a tie between two codes, which FP32's own rounding
    decides: every byte must be equal. BF16 weights often are: each difference must be such a tie."""
    row, linears, size, equal, different = Row(), 0, 0, 0, 0
    strict = dtype == torch.float32
    kind = "FP32" if strict else "BF16"
    for name, (config, spec) in MODELS.items():
        here = os.path.join(work, f"compress-{name}-{kind}")
        what, source = f"{name}, {kind} weights", os.path.join(here, "model")
        model = AutoModelForCausalLM.from_config(config)
        randomise(model, torch.Generator().manual_seed(sum(name.encode())))
        model.to(dtype).save_pretrained(source)
        # In FP32: llm-compressor computes scales in the type of the loaded weights.
        theirs = llm_compressor(source, os.path.join(here, "theirs"), torch.float32)
        tensors = tensors_of(source)
        weights = {module: tensors[module + ".weight"] for module in theirs}
        exported = packed_modules(tensors_of(exported_packed(program, source, spec, here)))
        by_verb, _ = quantised_by_verb(program, weights, here)
        difference = first_difference(by_verb, exported)
        check(f"{what}, nibble quantize and export", difference is None, difference or "")
        difference = first_difference(theirs, exported)
        bytes_here = sum(raw(t[part]).size for t in theirs.values() for part in PARTS[:2])
        apart = [differing(theirs, exported, part) for part in PARTS[:2]]
        seen = f"{len(theirs)} linears, {bytes_here} bytes; of codes {apart[0]} differ, "
        seen += f"of scales {apart[1]}" + (f"; first {difference}" if difference else "")
        check(f"{what}, llm-compressor", difference is None or not strict, seen)
        for side, packed in (("llm-compressor", theirs), ("nibble", exported)):
            scale = {module: exported[module][PARTS[2]] for module in packed}
            worst = max(worst_rounding(weights[m], t, scale[m]) for m, t in packed.items())
            seen = f"{worst:.2f} FP32 roundings from the nearest, at most {ROUNDINGS}"
            check(f"{what}, every code and scale of {side}", worst <= ROUNDINGS, seen)
        count = check_global_scales(theirs, exported)
        check(f"{what}, global scales", True, f"{count} of {len(theirs)} equal")
        if strict:
            check_damage(what, theirs, exported, weights)
            in_bf16 = llm_compressor(source, os.path.join(here, "theirs-bf16"), torch.bfloat16)
            other = differing(in_bf16, exported, PARTS[1])
            total = sum(t[PARTS[1]].numel() for t in in_bf16.values())
            print(f"note {name}, llm-compressor in BF16: {other} of {total} scales differ")
        linears, size = linears + len(theirs), size + bytes_here
        equal, different = equal + count, different + sum(apart)
    result = "bit-identical" if strict else f"{different} bytes differ, each at a rounding tie"
    row.end(
        f"NVFP4A16 codes and block scales, {kind} weights",
        ("llmcompressor", "transformers"),
        f"{linears} linears, {size} bytes",
        f"{result}; {equal} global scales equal, the others but for FP32 rounding",
    )


# compressed-tensors


def distance(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def their_logits(directory, tokens):
    """Logits in FP32 with the weights that compressed-tensors dequantises to BF16; the file's other
    tensors are BF16 too."""
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.float32,
        attn_implementation="eager",
        quantization_config=CompressedTensorsConfig(dequantize=True),
    ).eval()
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            module.quantization_enabled = False  # otherwise its forward would quantise again
    for parameter in model.parameters():
        parameter.data = parameter.data.float()
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def our_logits(program, directory, tokens, work):
    out = os.path.join(work, "logits")
    nibble(program, directory, ",".join(str(token) for token in tokens), out)
    return np.fromfile(out, np.float32).reshape(len(tokens), -1)


def unpacked(packed, dequantised, target):
    """The packed model in a form that Nibble reads: the linears in BF16, dequantised by `nibble
    quantize`, all other tensors unchanged."""
    shutil.copytree(packed, target, ignore=lambda _, names: [n for n in names if "model" in n])
    path = os.path.join(target, "config.json")
    with open(path) as f:
        config = json.load(f)
    del config["quantization_config"]
    with open(path, "w") as f:
        json.dump(config, f)
    tensors = tensors_of(packed)
    kept = {k: t for k, t in tensors.items() if k.rsplit(".", 1)[-1] not in PARTS}
    kept |= {f"{module}.weight": w.bfloat16() for module, w in dequantised.items()}
    save_file(kept, os.path.join(target, "model.safetensors"), {"format": "pt"})


def check_compressed_tensors(programs, work):
    row, worst, linears = Row(), 0.0, 0
    tokens = [(7 * i * i + 3) % 257 for i in range(64)]
    for name in MODELS:
        here = os.path.join(work, f"logits-{name}")
        plain, packed, target = (os.path.join(here, d) for d in ("plain", "packed", "unpacked"))
        os.makedirs(here)
        for directory, kind in ((plain, "f32"), (packed, "nvfp4-base")):
            nibble(programs[2], name, "5", directory, kind)
        modules, tensors = packed_modules(tensors_of(packed)), tensors_of(plain)
        weights = {module: tensors[module + ".weight"] for module in modules}
        _, dequantised = quantised_by_verb(programs[0], weights, here)
        unpacked(packed, dequantised, target)
        ours = our_logits(programs[1], target, tokens, here)
        difference = distance(their_logits(packed, tokens), ours)
        seen = f"{difference:.1e}, at most {LOGITS_TOLERANCE:.0e}"
        check(f"{name}, logits of the packed export", difference <= LOGITS_TOLERANCE, seen)
        for shard in (n for n in sorted(os.listdir(packed)) if n.endswith(".safetensors")):
            path = os.path.join(packed, shard)
            parts = load_file(path)
            last = [key for key in parts if key.endswith(PARTS[0])][-1:]
            save_file(parts | {key: flipped(parts[key], 4) for key in last}, path, {"format": "pt"})
        damage = distance(their_logits(packed, tokens), ours)
        check(f"{name}, flipped codes show", damage > LOGITS_TOLERANCE, f"{damage:.1e}")
        worst, linears = max(worst, difference), linears + len(modules)
    amount = f"{len(MODELS)} models, {linears} linears, {len(tokens)} tokens each"
    packages = ("compressed-tensors", "transformers")
    result = f"at most {worst:.1e} of the largest logit apart"
    row.end("logits of packed exports", packages, amount, result)
