#!/usr/bin/env python3
"""Decision oracle: the REAL vLLM V1 scheduler, on CPU, without a model.

The program imports an unpacked vLLM wheel (pure-Python part only), builds the
real ``VllmConfig`` / ``SchedulerConfig`` / ``CacheConfig`` / ``KVCacheConfig``,
constructs the real ``Scheduler`` (or ``AsyncScheduler``), feeds it a trace and
a fake model runner, and writes one JSON line per engine iteration.

No vLLM source is contained here.  See README.md next to this file for the
workload, config and log formats, and for what is faked.

    vllm_oracle.py run   --workload W.jsonl --config C.json --out L.jsonl
    vllm_oracle.py batch --manifest M.json          # many cases, one process
    vllm_oracle.py expand --workload W.jsonl --out E.jsonl
    vllm_oracle.py hashes --workload W.jsonl --config C.json --out H.jsonl
    vllm_oracle.py plan  --config P.json            # groups / num_blocks planner
    vllm_oracle.py bench --requests 2000

Environment: VLLM_ORACLE_SRC = directory that contains the ``vllm`` package
(setup.sh prints it).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import sys
import time
import types
import zlib
from collections import deque
from typing import Any, Callable, Iterable

VLLM_SRC = os.environ.get("VLLM_ORACLE_SRC", "")
DEFAULT_VOCAB = 32000

DEFAULT_CONFIG: dict[str, Any] = {
    # KV cache
    "block_size": 16,
    "num_blocks": 1024,            # includes the null block, as in vLLM
    "enable_prefix_caching": True,
    "hash_algo": "sha256",         # sha256 | sha256_cbor | xxhash | xxhash_cbor
    "none_hash_seed": None,        # None: vLLM's default; str: PYTHONHASHSEED
    "prefix_match_unit": None,
    "prefix_cache_retention_interval": 0,   # vLLM 0.33 default; null = dense
    "groups": None,                # see README; None: one full-attention group
    # scheduler
    "max_num_seqs": 128,
    "max_num_active_seqs": None,
    "max_num_batched_tokens": 2048,
    "max_num_scheduled_tokens": None,
    "max_model_len": 8192,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "policy": "fcfs",              # fcfs | priority
    "watermark": 0.0,
    "scheduler_reserve_full_isl": True,
    "prefill_schedule_interval": 1,
    "common_prefill_interval": 1,   # the same for ranks that step together: DPEngineCoreProc throttles by its step counter
    "async_scheduling": False,     # harness default: the synchronous Scheduler
    # spec decode
    "num_speculative_tokens": 0,
    "spec_method": "ngram",        # ngram | eagle | draft_model | mtp ...
    "num_nextn_predict_layers": 1,  # MTP modules of the drafter
    "disable_eagle_block_drop": False,
    "disable_lookahead_block_hashes": False,
    # lora
    "max_loras": None,             # None: number of distinct adapters seen
    # logging
    "kv_events": False,
    "log_free_queue": "digest",    # none | digest | full
    "log_hashes": False,           # hashes of admitted requests' prompt blocks
    "log_tables": False,           # full block table of every running request
    # simulation limits
    "max_steps": 10_000_000,
    "stall_steps": 8,
    # fake model
    "vocab": DEFAULT_VOCAB,
    "arrival_time": "unique",      # unique | step   (see README)
}


# --------------------------------------------------------------------------
# deterministic tokens
# --------------------------------------------------------------------------
def prompt_token(seed: Any, i: int, vocab: int = DEFAULT_VOCAB) -> int:
    """Token i of the seeded prompt stream ``seed``."""
    h = hashlib.sha256(f"p:{seed}:{i}".encode()).digest()
    return int.from_bytes(h[:4], "big") % vocab


def output_token(req_id: str, k: int, vocab: int = DEFAULT_VOCAB) -> int:
    """k-th (0-based) output token of request ``req_id``."""
    h = hashlib.sha256(f"o:{req_id}:{k}".encode()).digest()
    return int.from_bytes(h[:4], "big") % vocab


def accepted_drafts(req_id: str, k: int, num: int) -> int:
    """How many of ``num`` draft tokens proposed after output token k are right."""
    if num <= 0:
        return 0
    h = hashlib.sha256(f"d:{req_id}:{k}".encode()).digest()
    return int.from_bytes(h[:4], "big") % (num + 1)


def expand_prompt(line: dict, vocab: int) -> list[int]:
    if "prompt_token_ids" in line:
        return [int(t) for t in line["prompt_token_ids"]]
    if "prompt_parts" in line:
        out: list[int] = []
        for part in line["prompt_parts"]:
            if "token_ids" in part:
                out.extend(int(t) for t in part["token_ids"])
            else:
                out.extend(
                    prompt_token(part["seed"], i, vocab) for i in range(part["len"])
                )
        return out
    return [prompt_token(line["seed"], i, vocab) for i in range(line["prompt_len"])]


def _open(path: str, mode: str):
    if path.endswith(".gz"):
        if "w" in mode:
            raw = open(path, "wb")
            gz = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0)
            import io

            class _W(io.TextIOWrapper):
                def close(self_inner):  # noqa: N805
                    super().close()
                    raw.close()

            return _W(gz, encoding="utf-8")
        return gzip.open(path, mode + "t", encoding="utf-8")
    return open(path, mode, encoding="utf-8")


def read_workload(path: str) -> list[dict]:
    with _open(path, "r") as f:
        return [json.loads(s) for s in f if s.strip() and not s.startswith("#")]


def read_config(path: str | None) -> dict:
    if path is None:
        return {}
    with _open(path, "r") as f:
        text = f.read()
    if path.endswith((".yaml", ".yml")):
        import yaml

        return yaml.safe_load(text) or {}
    return json.loads(text)


# --------------------------------------------------------------------------
# importing vLLM without its compiled parts
# --------------------------------------------------------------------------
_V: types.SimpleNamespace | None = None


def import_vllm() -> types.SimpleNamespace:
    """Import the pieces we drive; returns a namespace. Takes 15-60 s."""
    global _V
    if _V is not None:
        return _V
    if not os.path.isdir(os.path.join(VLLM_SRC, "vllm")):
        sys.exit(f"no vllm package under {VLLM_SRC}; set VLLM_ORACLE_SRC")
    sys.path.insert(0, VLLM_SRC)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.pop("PYTHONHASHSEED", None)
    # vllm.env_override only tunes torch/inductor; stubbing it saves ~20 s.
    sys.modules.setdefault("vllm.env_override", types.ModuleType("vllm.env_override"))

    import torch
    import vllm.model_executor.models.registry as reg

    def fake_inspect(self):
        """Model capabilities of a plain decoder-only LM, without loading code."""
        return reg._ModelInfo(
            architecture=self.class_name,
            is_text_generation_model=True,
            is_pooling_model=False,
            attn_type="decoder",
            default_seq_pooling_type="LAST",
            default_tok_pooling_type="ALL",
            score_type="bi-encoder",
            supports_multimodal=False,
            supports_multimodal_raw_input_only=False,
            requires_raw_input_tokens=False,
            supports_multimodal_encoder_tp_data=False,
            supports_pp=True,
            supports_lora=True,
            supports_hc_sp=False,
            has_inner_state=False,
            is_attention_free=False,
            is_hybrid=False,
            has_noops=False,
            supports_replayssm=False,
            supports_transcription=False,
            supports_transcription_only=False,
            supports_kv_cache_grouping=False,
            supported_video_pruning_methods=(),
            supports_mm_device_do_normalize=False,
        )

    reg._LazyRegisteredModel.inspect_model_cls = fake_inspect

    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        VllmConfig,
    )
    from vllm.config.kv_events import KVEventsConfig
    from vllm.config.lora import LoRAConfig
    from vllm.config.speculative import SpeculativeConfig
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_planning, kv_cache_utils
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus
    from vllm.v1.structured_output import StructuredOutputManager

    import gc

    import vllm

    gc.collect()
    gc.freeze()      # as EngineCore does: keep the import heap out of GC passes
    import atexit

    atexit.register(gc.unfreeze)
    ns = dict(locals())
    ns.pop("ns", None)
    _V = types.SimpleNamespace(**ns)
    return _V


def tiny_model_dir() -> str:
    """A config.json only model directory (no weights, no tokenizer)."""
    d = os.path.join(
        os.environ.get("TMPDIR", "/tmp"), f"vllm_oracle_tiny_{os.getuid()}"
    )
    os.makedirs(d, exist_ok=True)
    cfg = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "vocab_size": 1 << 20, "max_position_embeddings": 1 << 22,
        "rms_norm_eps": 1e-5, "torch_dtype": "float16", "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "tie_word_embeddings": False,
    }
    path = os.path.join(d, "config.json")
    if not os.path.exists(path):
        tmp = f"{path}.{os.getpid()}"
        with open(tmp, "w") as f:
            json.dump(cfg, f)
        os.replace(tmp, path)
    return d


# --------------------------------------------------------------------------
# building the scheduler
# --------------------------------------------------------------------------
def make_group_spec(V, g: dict, default_block_size: int, extra_retained_tokens: int = 0):
    bs = int(g.get("block_size", default_block_size))
    kind = g.get("type", "full")
    common = dict(
        block_size=bs,
        num_kv_heads=int(g.get("num_kv_heads", 1)),
        head_size=int(g.get("head_size", 1)),
        dtype=getattr(V.torch, g.get("dtype", "float16")),
    )
    if kind == "full":
        return V.FullAttentionSpec(**common)
    if kind == "sliding_window":
        return V.SlidingWindowSpec(
            sliding_window=int(g["sliding_window"]),
            extra_retained_tokens=extra_retained_tokens,
            **common,
        )
    if kind == "chunked_local":
        return V.ChunkedLocalAttentionSpec(
            attention_chunk_size=int(g["attention_chunk_size"]), **common
        )
    if kind == "mamba":
        return V.MambaSpec(
            block_size=bs,
            shapes=tuple(tuple(s) for s in g.get("shapes", [[1, 1]])),
            dtypes=(getattr(V.torch, g.get("dtype", "float16")),)
            * len(g.get("shapes", [[1, 1]])),
            mamba_cache_mode=g.get("mamba_cache_mode", "align"),
            num_speculative_blocks=int(g.get("num_speculative_blocks", 0)),
            num_prefill_checkpoint_blocks=int(g.get("num_prefill_checkpoint_blocks", 0)),
            prefill_checkpoint_alignment=g.get("prefill_checkpoint_alignment"),
            page_size_padded=g.get("page_size_padded"),
        )
    raise ValueError(f"unknown group type {kind!r}")


def make_spec_config(V, cfg: dict):
    """A SpeculativeConfig without a draft model: only the fields read here."""
    sc = object.__new__(V.SpeculativeConfig)
    for name, f in V.SpeculativeConfig.__dataclass_fields__.items():
        import dataclasses

        val = None
        if f.default is not dataclasses.MISSING:
            val = f.default
            if type(val).__name__ == "FieldInfo":
                val = None
        object.__setattr__(sc, name, val)
    object.__setattr__(sc, "method", cfg["spec_method"])
    object.__setattr__(sc, "num_speculative_tokens", cfg["num_speculative_tokens"])
    draft = types.SimpleNamespace(hf_config=types.SimpleNamespace(
        num_nextn_predict_layers=cfg["num_nextn_predict_layers"]))
    object.__setattr__(sc, "draft_model_config", draft if cfg["spec_method"] == "mtp" else None)
    object.__setattr__(sc, "parallel_drafting", False)
    object.__setattr__(sc, "num_speculative_tokens_per_batch_size", None)
    object.__setattr__(sc, "disable_eagle_block_drop", cfg["disable_eagle_block_drop"])
    object.__setattr__(
        sc, "disable_lookahead_block_hashes", cfg["disable_lookahead_block_hashes"]
    )
    return sc


class _CapturePublisher:
    """Stands in for the KV event publisher; keeps batches for the log."""

    def __init__(self):
        self.events: list[Any] = []

    def publish(self, batch):
        self.events.extend(batch.events)

    def shutdown(self):
        pass


def build(cfg_in: dict, max_loras: int = 0) -> types.SimpleNamespace:
    """Build config objects and the scheduler. Mirrors what EngineCore does."""
    V = import_vllm()
    cfg = dict(DEFAULT_CONFIG)
    unknown = set(cfg_in) - set(cfg) - {"comment", "name"}
    if unknown:
        raise ValueError(f"unknown config keys: {sorted(unknown)}")
    cfg.update({k: v for k, v in cfg_in.items() if k in cfg})

    if cfg["none_hash_seed"] is not None:
        os.environ["PYTHONHASHSEED"] = str(cfg["none_hash_seed"])
    else:
        os.environ.pop("PYTHONHASHSEED", None)
        if cfg["enable_prefix_caching"] and cfg["hash_algo"].startswith("xxhash"):
            raise ValueError("xxhash needs none_hash_seed (vLLM: random per process)")

    groups_cfg = cfg["groups"] or [{"type": "full"}]
    has_mamba = any(g.get("type") == "mamba" for g in groups_cfg)
    model_config = V.ModelConfig(
        model=tiny_model_dir(),
        skip_tokenizer_init=True,
        dtype="float16",
        max_model_len=cfg["max_model_len"],
    )
    sched_kwargs = {
        k: cfg[k]
        for k in (
            "max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens",
            "max_num_scheduled_tokens", "max_model_len", "enable_chunked_prefill",
            "long_prefill_token_threshold", "long_prefill_token_threshold_adaptive",
            "policy", "watermark", "scheduler_reserve_full_isl",
            "prefill_schedule_interval", "async_scheduling",
        )
    }
    scheduler_config = V.SchedulerConfig(is_encoder_decoder=False, **sched_kwargs)
    cache_config = V.CacheConfig(
        block_size=cfg["block_size"],
        enable_prefix_caching=cfg["enable_prefix_caching"],
        prefix_caching_hash_algo=cfg["hash_algo"],
        prefix_cache_retention_interval=cfg["prefix_cache_retention_interval"],
        prefix_match_unit=cfg["prefix_match_unit"],
    )
    lora_config = None
    n_loras = cfg["max_loras"] if cfg["max_loras"] is not None else max_loras
    if n_loras:
        lora_config = V.LoRAConfig(max_loras=n_loras, max_lora_rank=16)
    kv_events_config = None
    if cfg["kv_events"]:
        kv_events_config = V.KVEventsConfig(
            enable_kv_cache_events=True, publisher="null"
        )
    vllm_config = V.VllmConfig(
        model_config=model_config,
        scheduler_config=scheduler_config,
        cache_config=cache_config,
        parallel_config=V.ParallelConfig(),
        device_config=V.DeviceConfig(device="cpu"),
        lora_config=lora_config,
        kv_events_config=kv_events_config,
    )
    if has_mamba:
        cache_config.mamba_cache_mode = (
            "align" if cfg["enable_prefix_caching"] else "none"
        )
    if cfg["num_speculative_tokens"]:
        vllm_config.speculative_config = make_spec_config(V, cfg)
        vllm_config._set_max_num_scheduled_tokens()
    # the engine would have refused these; make sure nothing was overridden
    for k in ("max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill"):
        assert getattr(scheduler_config, k) == cfg[k], k
    assert cache_config.enable_prefix_caching == cfg["enable_prefix_caching"]

    V.register_all_kvcache_specs(vllm_config)
    # as the planner marks windows where a drafter has several MTP modules
    extra = max(0, vllm_config.num_prefill_lookahead_tokens - 1)
    specs = [make_group_spec(V, g, cfg["block_size"], extra) for g in groups_cfg]
    kv_cache_config = V.KVCacheConfig(
        num_blocks=cfg["num_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=[
            V.KVCacheGroupSpec(
                [f"layer.{i}"], s, is_eagle_group=bool(g.get("eagle", False))
            )
            for i, (s, g) in enumerate(zip(specs, groups_cfg))
        ],
        prefix_cache_retention_interval=cache_config.prefix_cache_retention_interval,
    )
    cache_config.num_gpu_blocks = cfg["num_blocks"]
    cache_config.block_size = min(s.block_size for s in specs)
    sched_bs, hash_bs = V.kv_cache_utils.resolve_kv_cache_block_sizes(
        kv_cache_config, vllm_config
    )
    kv_cache_config.hash_block_size = hash_bs
    cls = V.AsyncScheduler if cfg["async_scheduling"] else V.Scheduler
    assert scheduler_config.get_scheduler_cls() is cls
    sched = cls(
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=V.StructuredOutputManager(vllm_config),
        block_size=sched_bs,
        hash_block_size=hash_bs,
        log_stats=True,
    )
    pub = _CapturePublisher()
    sched.kv_event_publisher = pub
    hasher = None
    if cfg["enable_prefix_caching"]:
        fn = V.get_hash_fn_by_name(cfg["hash_algo"])
        V.kv_cache_utils.init_none_hash(fn)
        hasher = V.kv_cache_utils.get_request_block_hasher(
            hash_bs, fn, vllm_config.num_hash_lookahead_tokens
        )
    return types.SimpleNamespace(
        V=V, cfg=cfg, vllm_config=vllm_config, sched=sched, hasher=hasher,
        publisher=pub, scheduler_block_size=sched_bs, hash_block_size=hash_bs,
    )


# --------------------------------------------------------------------------
# the driver
# --------------------------------------------------------------------------
def _hex(b):
    if b is None:
        return None
    return b.hex() if isinstance(b, (bytes, bytearray)) else b


def _jsonable(x):
    if isinstance(x, (bytes, bytearray)):
        return x.hex()
    if isinstance(x, (list, tuple)):
        return [_jsonable(v) for v in x]
    return x


def event_to_json(e) -> dict:
    name = type(e).__name__
    d: dict[str, Any] = {"type": name}
    if name == "BlockStored":
        d.update(
            block_hashes=[_hex(h) for h in e.block_hashes],
            parent_block_hash=_hex(e.parent_block_hash),
            token_ids=list(e.token_ids),
            block_size=e.block_size,
            lora_id=e.lora_id,
            lora_name=e.lora_name,
            extra_keys=_jsonable(e.extra_keys),
            group_idx=e.group_idx,
            medium=e.medium,
            kv_cache_spec_kind=e.kv_cache_spec_kind,
            sliding_window=e.kv_cache_spec_sliding_window,
        )
    elif name == "BlockRemoved":
        d.update(
            block_hashes=[_hex(h) for h in e.block_hashes],
            group_idx=e.group_idx,
            medium=e.medium,
        )
    return d


class Oracle:
    delivers_all = True
    """Whether every output counts, so that the model's count and the scheduler's agree."""

    def __init__(self, cfg: dict, workload: Iterable[dict]):
        lines = list(workload)
        loras: dict[str, int] = {}
        for ln in lines:
            if ln.get("lora"):
                loras.setdefault(ln["lora"], len(loras) + 1)
        self.lora_ids = loras
        self.b = build(cfg, max_loras=len(loras))
        self.V = self.b.V
        self.cfg = self.b.cfg
        self.sched = self.b.sched
        self.num_schedules = 0
        self.events = deque(
            sorted(
                enumerate(lines),
                key=lambda p: (p[1].get("arrival_step", p[1].get("step", 0)), p[0]),
            )
        )
        self.num_requests = sum(1 for ln in lines if "op" not in ln)
        self.meta: dict[str, dict] = {}
        self.stat = dict(queries=0, hits=0, requests=0,
                         preempted_queries=0, preempted_hits=0, preempted_requests=0)
        self.preempted_log: list[str] = []
        self.admitted: set[str] = set()
        self.emitted: dict[str, int] = {}
        self.just_admitted: set[str] = set()
        orig = self.sched._preempt_request

        def rec_preempt(request, *a, **k):
            self.preempted_log.append(request.request_id)
            return orig(request, *a, **k)

        self.sched._preempt_request = rec_preempt
        self.k_spec = self.cfg["num_speculative_tokens"]

    # -- requests ---------------------------------------------------------
    def make_request(self, idx: int, ln: dict):
        V, cfg = self.V, self.cfg
        vocab = cfg["vocab"]
        ids = expand_prompt(ln, vocab)
        if not ids:
            raise ValueError(f"{ln['id']}: empty prompt")
        if len(ids) >= cfg["max_model_len"]:
            # vLLM's frontend refuses prompts that leave no room for a token
            raise ValueError(f"{ln['id']}: prompt does not fit max_model_len")
        eos = ln.get("eos_token_id")
        sp = V.SamplingParams(
            max_tokens=int(ln["output_len"]), ignore_eos=eos is None, temperature=0.0,
            stop_token_ids=list(ln.get("stop_token_ids", ())),
            min_tokens=int(ln.get("min_tokens", 0)),
        )
        if eos is not None:
            sp.update_from_generation_config({}, int(eos))
        lora = None
        if ln.get("lora"):
            name = ln["lora"]
            lora = V.LoRARequest(
                lora_name=name, lora_int_id=self.lora_ids[name],
                lora_path="/loras/" + name,
            )
        step = ln.get("arrival_step", 0)
        if "arrival_time" in ln:
            at = float(ln["arrival_time"])
        elif cfg["arrival_time"] == "unique":
            at = float(step) + idx * 1e-6
        else:
            at = float(step)
        req = V.Request(
            request_id=str(ln["id"]),
            prompt_token_ids=ids,
            sampling_params=sp,
            pooling_params=None,
            arrival_time=at,
            lora_request=lora,
            cache_salt=ln.get("cache_salt"),
            priority=int(ln.get("priority", 0)),
            block_hasher=self.b.hasher,
        )
        self.meta[req.request_id] = {
            "prompt_len": len(ids),
            "forced": ln.get("output_token_ids"),
        }
        return req

    def out_token(self, rid: str, k: int) -> int:
        forced = self.meta[rid]["forced"]
        if forced is not None and k < len(forced):
            return int(forced[k])
        return output_token(rid, k, self.cfg["vocab"])

    def apply_events(self, step: int, rec: dict) -> None:
        while self.events:
            idx, ln = self.events[0]
            at = ln.get("arrival_step", ln.get("step", 0))
            if at > step:
                break
            self.events.popleft()
            op = ln.get("op", "add")
            if op == "add":
                req = self.make_request(idx, ln)
                self.sched.add_request(req)
                rec.setdefault("added", []).append(req.request_id)
            elif op == "abort":
                done = self.sched.finish_requests(
                    str(ln["id"]), self.V.RequestStatus.FINISHED_ABORTED
                )
                rec.setdefault("aborted", []).extend(r.request_id for r in done)
            elif op == "reset_prefix_cache":
                ok = self.sched.reset_prefix_cache(
                    bool(ln.get("reset_running_requests", False))
                )
                rec["reset_prefix_cache"] = bool(ok)
            else:
                raise ValueError(f"unknown op {op}")

    # -- fake model -------------------------------------------------------
    def execute(self, so) -> dict:
        """Decide, at schedule time, what the model will return for this step."""
        samples: dict[str, list[int]] = {}
        drafts: dict[str, list[int]] = {}
        for rid, n in so.num_scheduled_tokens.items():
            req = self.sched.requests[rid]
            if req.is_prefill_chunk:
                samples[rid] = []
                continue
            spec = so.scheduled_spec_decode_tokens.get(rid, [])
            # index of the first token produced by this step: what the worker
            # has emitted so far (the scheduler's own count is optimistic while
            # drafts are in flight)
            k0 = self.emitted[rid]
            if not self.k_spec and self.delivers_all:
                assert k0 == req.num_computed_tokens - self.meta[rid]["prompt_len"]
            toks = [self.out_token(rid, k0)]
            for j, d in enumerate(spec):
                # -1 on admission is padding (the worker has no drafts: rejected);
                # otherwise (async) a placeholder for drafts the worker knows
                if d != -1:
                    good = d == toks[-1]
                else:
                    good = rid not in self.just_admitted and j < accepted_drafts(
                        rid, k0 - 1, self.k_spec
                    )
                if not good:
                    break
                toks.append(self.out_token(rid, k0 + j + 1))
            samples[rid] = toks
            self.emitted[rid] = k0 + len(toks)
            if self.k_spec:
                klast = k0 + len(toks) - 1
                a = accepted_drafts(rid, klast, self.k_spec)
                drafts[rid] = [
                    self.out_token(rid, klast + 1 + j)
                    if j < a
                    else (self.out_token(rid, klast + 1 + j) + 1) % self.cfg["vocab"]
                    for j in range(self.k_spec)
                ]
        return {"samples": samples, "drafts": drafts}

    # -- logging ----------------------------------------------------------
    def _throttles(self) -> bool:
        """DPEngineCoreProc._should_throttle_prefills, as if a wave began with the case and never ended."""
        self.num_schedules += 1
        interval = self.cfg["common_prefill_interval"]
        return interval > 1 and (self.num_schedules - 1) % interval != 0

    def log_schedule(self, rec: dict, so) -> None:
        sched = self.sched
        rec["scheduled"] = [[r, n] for r, n in so.num_scheduled_tokens.items()]
        new: dict[str, dict] = {}
        for nr in so.scheduled_new_reqs:
            new[nr.req_id] = {
                "id": nr.req_id,
                "num_computed_tokens": nr.num_computed_tokens,
                "block_ids": [list(g) for g in nr.block_ids],
                "resumed": nr.req_id in self.admitted,
            }
        cr = so.scheduled_cached_reqs
        running_new: list = []
        for i, rid in enumerate(cr.req_ids):
            bids = cr.new_block_ids[i]
            if rid in cr.resumed_req_ids:
                new[rid] = {
                    "id": rid,
                    "num_computed_tokens": cr.num_computed_tokens[i],
                    "block_ids": [list(g) for g in (bids or ())],
                    "resumed": True,
                }
            elif bids is not None:
                running_new.append([rid, [list(g) for g in bids]])
        rec["admitted"] = [new[r] for r in so.num_scheduled_tokens if r in new]
        self.just_admitted = set(new)
        for r in new:
            self.admitted.add(r)
            self.emitted[r] = sched.requests[r].num_output_tokens
        rec["running_new_blocks"] = running_new
        if so.scheduled_spec_decode_tokens:
            rec["spec"] = [
                [r, list(t)] for r, t in so.scheduled_spec_decode_tokens.items()
            ]
        if so.kv_cache_block_copies:
            rec["cow_copies"] = [list(c) for c in so.kv_cache_block_copies]
        rec["preempted"] = self.preempted_log[:]
        self.preempted_log.clear()
        if self.cfg["log_hashes"]:
            hs = {}
            for r in new:
                hs[r] = [h.hex() for h in sched.requests[r].block_hashes]
            if hs:
                rec["hashes"] = hs
        if self.cfg["log_tables"]:
            rec["tables"] = {
                r.request_id: [
                    list(g) for g in sched.kv_cache_manager.get_block_ids(r.request_id)
                ]
                for r in sched.running
            }
        rec["free_after_schedule"] = (
            sched.kv_cache_manager.block_pool.get_num_free_blocks()
        )
        q = self.free_queue(sched)
        if q is not None:
            rec["free_queue_after_schedule"] = q

    def free_queue(self, sched):
        mode = self.cfg["log_free_queue"]
        if mode == "none":
            return None
        ids = [
            b.block_id
            for b in sched.kv_cache_manager.block_pool.free_block_queue
            .get_all_free_blocks()
        ]
        if mode == "full":
            return ids
        data = b"".join(i.to_bytes(4, "little") for i in ids)
        return zlib.crc32(data)

    def log_update(self, rec: dict, so, result: dict, eco, processed_step: int) -> None:
        sched = self.sched
        if processed_step != rec["step"]:
            rec["processed_step"] = processed_step
        delivered: dict[str, list[int]] = {}
        finished: list[list[str]] = []
        stats = None
        for outs in eco.values():
            for o in outs.outputs:
                delivered[o.request_id] = list(o.new_token_ids)
                if o.finish_reason is not None:
                    finished.append([o.request_id, str(o.finish_reason)])
            if outs.scheduler_stats is not None:
                stats = outs.scheduler_stats
        rec["sampled"] = [
            [r, delivered[r]] for r in so.num_scheduled_tokens if delivered.get(r)
        ]
        rec["finished"] = finished
        if stats is not None:
            p = stats.prefix_cache_stats
            for k in self.stat:
                self.stat[k] += getattr(p, k)

    def log_state(self, rec: dict) -> None:
        sched = self.sched
        pool = sched.kv_cache_manager.block_pool
        rec["running"] = [r.request_id for r in sched.running]
        # iterating a PriorityRequestQueue pops from a copy of the heap
        rec["waiting"] = [r.request_id for r in sched.waiting] + [
            r.request_id for r in sched.kv_holding_waiting
        ]
        rec["free_blocks"] = pool.get_num_free_blocks()
        q = self.free_queue(sched)
        if q is not None:
            rec["free_queue"] = q
        rec["map_entries"] = len(pool.cached_block_hash_to_block)
        rec["hashed_blocks"] = sum(1 for b in pool.blocks if b.block_hash is not None)
        rec["prefix"] = dict(self.stat)
        if self.cfg["kv_events"]:
            rec["kv_events"] = [event_to_json(e) for e in self.b.publisher.events]
            self.b.publisher.events.clear()

    # -- loops ------------------------------------------------------------
    def run(self, emit: Callable[[dict], None]) -> dict:
        t0 = time.perf_counter()
        if self.cfg["async_scheduling"]:
            steps = self._run_async(emit)
        else:
            steps = self._run_sync(emit)
        dt = time.perf_counter() - t0
        return {
            "steps": steps, "requests": self.num_requests, "seconds": dt,
            "steps_per_s": steps / dt if dt else None,
            "requests_per_s": self.num_requests / dt if dt else None,
        }

    def model_output(self, so, result):
        V = self.V
        ids = list(so.num_scheduled_tokens)
        return V.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={r: i for i, r in enumerate(ids)},
            sampled_token_ids=[list(result["samples"][r]) for r in ids],
        )

    def _stall(self, rec, emit):
        rec["stalled"] = True
        emit(rec)

    def _run_sync(self, emit) -> int:
        sched = self.sched
        step = 0
        n = 0
        zero = 0
        while n < self.cfg["max_steps"]:
            if not sched.has_requests():
                if not self.events:
                    break
                ln = self.events[0][1]
                step = max(step, ln.get("arrival_step", ln.get("step", 0)))
            rec: dict[str, Any] = {"step": step}
            self.apply_events(step, rec)
            if not sched.has_requests():
                self.log_state(rec)
                emit(rec)
                step += 1
                continue
            so = sched.schedule(self._throttles())
            self.log_schedule(rec, so)
            result = self.execute(so)
            eco = sched.update_from_output(so, self.model_output(so, result))
            self.log_update(rec, so, result, eco, step)
            if self.k_spec and so.total_num_scheduled_tokens:
                ids = [r for r in so.num_scheduled_tokens if r in result["drafts"]]
                if ids:
                    sched.update_draft_token_ids(
                        self.V.DraftTokenIds(ids, [result["drafts"][r] for r in ids])
                    )
            self.log_state(rec)
            n += 1
            step += 1
            zero = 0 if so.total_num_scheduled_tokens else zero + 1
            if zero >= self.cfg["stall_steps"] and not self.events:
                self._stall(rec, emit)
                break
            emit(rec)
        return n

    def _run_async(self, emit) -> int:
        """EngineCore.step_with_batch_queue, with an instant fake GPU."""
        sched = self.sched
        size = self.b.vllm_config.max_concurrent_batches
        q: deque = deque()
        step = 0
        n = 0
        zero = 0
        while n < self.cfg["max_steps"]:
            if not sched.has_requests() and not q:
                if not self.events:
                    break
                ln = self.events[0][1]
                step = max(step, ln.get("arrival_step", ln.get("step", 0)))
            rec: dict[str, Any] = {"step": step}
            self.apply_events(step, rec)
            executed = False
            blocked = True
            if sched.has_requests():
                so = sched.schedule(self._throttles())
                self.log_schedule(rec, so)
                result = self.execute(so)
                executed = so.total_num_scheduled_tokens > 0
                q.appendleft((so, result, step))
                if len(q) < size and (executed or sched.has_requests()):
                    blocked = False
            if blocked and q:
                so_p, result_p, step_p = q.pop()
                # the worker applies the sampled tokens of (id, position); a
                # request that meanwhile finished is dropped by the scheduler
                eco = sched.update_from_output(so_p, self.model_output(so_p, result_p))
                self.log_update(rec, so_p, result_p, eco, step_p)
            self.log_state(rec)
            n += 1
            step += 1
            busy = executed or any(x[0].total_num_scheduled_tokens for x in q)
            zero = 0 if busy else zero + 1
            if zero >= self.cfg["stall_steps"] and not self.events:
                self._stall(rec, emit)
                break
            emit(rec)
        return n


def run_case(workload: str, config: str | dict, out: str | None, **over) -> dict:
    cfg = dict(read_config(config)) if not isinstance(config, dict) else dict(config)
    cfg.update({k: v for k, v in over.items() if v is not None})
    lines = read_workload(workload)
    orc = Oracle(cfg, lines)
    h = hashlib.sha256()
    if out:
        f = _open(out, "w")
    else:
        f = None

    def emit(rec):
        s = json.dumps(rec, separators=(",", ":"))
        h.update(s.encode())
        h.update(b"\n")
        if f:
            f.write(s + "\n")

    try:
        res = orc.run(emit)
    finally:
        if f:
            f.close()
    res["log_sha256"] = h.hexdigest()
    res["block_sizes"] = [orc.b.scheduler_block_size, orc.b.hash_block_size]
    res["preempted"] = orc.stat["preempted_requests"]
    res["prefix"] = orc.stat
    return res


# --------------------------------------------------------------------------
# block hashes only
# --------------------------------------------------------------------------
def dump_hashes(workload: str, config: str, out: str) -> None:
    lines = [ln for ln in read_workload(workload) if "op" not in ln]
    orc = Oracle(read_config(config), lines)
    V = orc.V
    with _open(out, "w") as f:
        f.write(
            json.dumps({"none_hash": V.kv_cache_utils.NONE_HASH.hex(),
                        "hash_block_size": orc.b.hash_block_size,
                        "algo": orc.cfg["hash_algo"]}) + "\n"
        )
        for i, ln in enumerate(lines):
            r = orc.make_request(i, ln)
            f.write(json.dumps({"id": r.request_id,
                                "hashes": [h.hex() for h in r.block_hashes]}) + "\n")


# --------------------------------------------------------------------------
# memory -> groups and num_blocks, with vLLM's own planner
# --------------------------------------------------------------------------
def plan(cfg: dict) -> dict:
    """cfg: {"available_bytes": int, "max_model_len": int,
    "max_num_batched_tokens": int, "layers": [{"name", "type", ...}],
    "num_gpu_blocks_override": int|None, "layout": "LBNHC"|None}"""
    V = import_vllm()
    b = build(
        {
            k: cfg[k]
            for k in ("max_model_len", "max_num_batched_tokens", "block_size",
                      "async_scheduling", "enable_prefix_caching")
            if k in cfg
        }
    )
    vc = b.vllm_config
    vc.cache_config.num_gpu_blocks_override = cfg.get("num_gpu_blocks_override")
    vc.cache_config.kv_cache_layout = cfg.get("layout") or "LBNHC"
    # the CPU-less platform object turns the hybrid manager off; GPUs do not
    vc.scheduler_config.disable_hybrid_kv_cache_manager = bool(
        cfg.get("disable_hybrid_kv_cache_manager", False)
    )
    specs: dict[str, Any] = {}
    for i, layer in enumerate(cfg["layers"]):
        for c in range(int(layer.get("count", 1))):
            nm = layer.get("name", f"{layer.get('type', 'full')}{i}") + f".{c}"
            specs[nm] = make_group_spec(V, layer, cfg.get("block_size", 16))
    pl = V.kv_cache_planning
    groups = pl.get_global_kv_cache_groups(vc, [specs])
    kvc = pl.get_kv_cache_configs(vc, [specs], [int(cfg["available_bytes"])], groups)[0]
    return {
        "num_blocks": kvc.num_blocks,
        "groups": [
            {
                "spec": type(g.kv_cache_spec).__name__,
                "block_size": g.kv_cache_spec.block_size,
                "page_size_bytes": g.kv_cache_spec.page_size_bytes,
                "sliding_window": getattr(g.kv_cache_spec, "sliding_window", None),
                "layers": g.layer_names,
            }
            for g in kvc.kv_cache_groups
        ],
        "tensors": [
            {"size": t.size, "layers": len(t.layers),
             "layer_stride": t.layer_stride, "block_stride": t.block_stride,
             "offset": t.offset}
            for t in kvc.kv_cache_tensors
        ],
        "max_model_len": vc.model_config.max_model_len,
    }


# --------------------------------------------------------------------------
# CLI
# --------------------------------------------------------------------------
def bench(n: int, async_sched: bool) -> dict:
    import random

    rng = random.Random(0)
    lines = []
    for i in range(n):
        pre = rng.randrange(20)
        lines.append(
            {"id": f"r{i}", "arrival_step": i // 4,
             "prompt_parts": [{"seed": f"s{pre}", "len": 256},
                              {"seed": f"u{i}", "len": rng.randrange(16, 400)}],
             "output_len": rng.randrange(16, 128)}
        )
    out = {}
    for fq in ("none", "digest"):
        cfg = {"num_blocks": 4096, "max_num_seqs": 128,
               "max_num_batched_tokens": 2048, "log_free_queue": fq,
               "async_scheduling": async_sched}
        orc = Oracle(cfg, lines)
        size = 0

        def emit(rec):
            nonlocal size
            size += len(json.dumps(rec, separators=(",", ":")))

        r = orc.run(emit)
        r["log_bytes"] = size
        r["prefix"] = orc.stat
        out[f"log_free_queue={fq}"] = r
    # and the scheduler alone, without the log
    orc = Oracle({"num_blocks": 4096, "max_num_seqs": 128,
                  "max_num_batched_tokens": 2048, "log_free_queue": "none",
                  "async_scheduling": async_sched}, lines)
    orc.log_state = lambda rec: None

    def only_emitted(rec, so):
        orc.preempted_log.clear()
        for nr in so.scheduled_new_reqs:
            orc.emitted[nr.req_id] = orc.sched.requests[nr.req_id].num_output_tokens

    orc.log_schedule = only_emitted
    out["no_log"] = orc.run(lambda rec: None)
    return out


def main(argv=None) -> int:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    sub = ap.add_subparsers(dest="cmd", required=True)
    p = sub.add_parser("run")
    p.add_argument("--workload", required=True)
    p.add_argument("--config")
    p.add_argument("--out")
    g = p.add_mutually_exclusive_group()
    g.add_argument("--sync", dest="async_", action="store_false", default=None)
    g.add_argument("--async", dest="async_", action="store_true")
    p = sub.add_parser("batch")
    p.add_argument("--manifest", required=True)
    p = sub.add_parser("expand")
    p.add_argument("--workload", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--vocab", type=int, default=DEFAULT_VOCAB)
    p = sub.add_parser("hashes")
    p.add_argument("--workload", required=True)
    p.add_argument("--config")
    p.add_argument("--out", required=True)
    p = sub.add_parser("plan")
    p.add_argument("--config", required=True)
    p = sub.add_parser("bench")
    p.add_argument("--requests", type=int, default=2000)
    p.add_argument("--async", dest="async_", action="store_true")
    a = ap.parse_args(argv)
    if a.cmd == "run":
        print(json.dumps(run_case(a.workload, a.config or {}, a.out,
                                  async_scheduling=a.async_)))
    elif a.cmd == "batch":
        with open(a.manifest) as f:
            cases = json.load(f)
        base = os.path.dirname(os.path.abspath(a.manifest))
        for c in cases:
            r = run_case(os.path.join(base, c["workload"]),
                         os.path.join(base, c["config"]),
                         os.path.join(base, c["out"]))
            print(json.dumps({"out": c["out"], **r}), flush=True)
    elif a.cmd == "expand":
        with _open(a.out, "w") as f:
            for ln in read_workload(a.workload):
                if "op" not in ln:
                    ids = expand_prompt(ln, a.vocab)
                    for k in ("prompt_parts", "prompt_len", "seed"):
                        ln.pop(k, None)
                    ln["prompt_token_ids"] = ids
                f.write(json.dumps(ln, separators=(",", ":")) + "\n")
    elif a.cmd == "hashes":
        dump_hashes(a.workload, a.config, a.out)
    elif a.cmd == "plan":
        print(json.dumps(plan(read_config(a.config)), indent=1))
    elif a.cmd == "bench":
        print(json.dumps(bench(a.requests, a.async_), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
