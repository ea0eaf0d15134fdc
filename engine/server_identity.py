"""What a configuration knows of the server that it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvtwin.engine.vllm_version import VLLM_VERSION


class ServerIdentity(Protocol):
    """Which server it is, and how its rules are known."""

    @property
    def name(self) -> str:
        """That of ``--server``."""

    @property
    def title(self) -> str:
        """What it is called wherever its figures are printed: at most 30 characters."""

    @property
    def evidence(self) -> str:
        """How its rules are known, said beside its figures; empty where the real one was run."""

    @property
    def has_null_block(self) -> bool:
        """Whether the configuration's ``num_blocks`` counts a block that the server really has and no request gets."""


@dataclass(frozen=True, slots=True)
class VllmServer:
    """vLLM, of which every setting is one of the configuration's own; the real scheduler's logs are compared."""

    name: str = "vllm"
    title: str = f"vLLM {VLLM_VERSION}"
    evidence: str = ""
    has_null_block: bool = True


VLLM = VllmServer()
