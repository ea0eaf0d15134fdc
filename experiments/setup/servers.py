"""What ``--server`` means: how each server sizes its cache, and how its engine is set up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.sizing.group_planning import SizingError
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.options.sizing import SizingOptions
from kvtwin.experiments.setup.engine import engine_config
from kvtwin.experiments.setup.host_memory import host_link
from kvtwin.experiments.setup.memory_advice import explained
from kvtwin.experiments.setup.sglang import SglangSetup
from kvtwin.experiments.setup.sizing import SizingInputs, SizingResult, plan_sizing, resolve_inputs, resolve_sizing
from kvtwin.experiments.setup.speculation import Drafting
from kvtwin.experiments.setup.trtllm import TrtllmSetup
from kvtwin.sim.host_link import HostLink


class ServerSetup(Protocol):
    """From the options to what a run of one server is made of. UserError: an option that cannot be."""

    def inputs(self, options: SizingOptions, drafting: Drafting | None) -> SizingInputs:
        """What the server knows before it plans its cache."""

    def plan(self, inputs: SizingInputs) -> SizingResult:
        """Its cache. SizingError: the server would not start."""

    def explained(
        self, error: SizingError, inputs: SizingInputs, options: SizingOptions, drafting: Drafting | None
    ) -> str:
        """Why it would not start, and what helps."""

    def sizing(self, options: SizingOptions, drafting: Drafting | None) -> SizingResult:
        """Its cache. UserError: the server would not start."""

    def engine_config(self, options: ReplayOptions, sizing: SizingResult, drafting: Drafting | None) -> EngineConfig:
        """Its engine's configuration."""

    def host_link(self, options: ReplayOptions, sizing: SizingResult) -> HostLink | None:
        """The link that copies to and from the host take time on; None where they take none."""


class VllmSetup:
    """vLLM's."""

    inputs = staticmethod(resolve_inputs)
    plan = staticmethod(plan_sizing)
    explained = staticmethod(explained)
    sizing = staticmethod(resolve_sizing)
    engine_config = staticmethod(engine_config)
    host_link = staticmethod(host_link)


SETUPS: Mapping[str, ServerSetup] = {"vllm": VllmSetup(), "trtllm": TrtllmSetup(), "sglang": SglangSetup()}


def setup_of(options: SizingOptions) -> ServerSetup:
    """That of the server which ``options`` choose."""
    return SETUPS[getattr(options, "server", "vllm")]
