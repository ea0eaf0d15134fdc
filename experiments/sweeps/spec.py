"""A sweep's specification: a YAML file of replays that differ in a few options.

```yaml
description: What does the block size gain and cost?
trace: demo                       # a workload file, relative to where you are; or demo
options:                          # options of every replay, without the dashes
  num-gpu-blocks-override: 1800
axes:                             # every combination of the values is one point
  block-size: [16, 32]
  max-num-seqs, max-num-batched-tokens: [[64, 2048], [128, 4096]]     # options that change together
points:                           # a list of options, each combined with all of the axes
  - {}
  - {scheduling-policy: priority}
columns: [prefix_cache_hit_rate, num_preemptions]      # keys of the summary to print
```
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.yaml_files import check_mapping, read_yaml
from kvtwin.experiments.options.reading import command_words, option_key, read_options
from kvtwin.experiments.options.replay import ReplayOptions

_KEYS = ("description", "trace", "options", "axes", "points", "columns")
_NOT_OPTIONS = ("out", "json", "help", "executor")
DEFAULT_COLUMNS = (
    "completed",
    "prefix_cache_hit_rate",
    "num_preemptions",
    "kv_cache_usage_mean",
    "mean_ttft_ms",
    "mean_tpot_ms",
    "output_throughput",
)

Options = dict[str, Any]
"""Option names without dashes, with their values."""


@dataclass(frozen=True)
class SweepPoint:
    """One replay of a sweep."""

    index: int
    varied: Options
    """The options in which the points differ; the trace may be one."""
    options: ReplayOptions
    named: frozenset[str]
    """Options that the specification names."""

    @property
    def arguments(self) -> list[str]:
        """The words of the replay's command line."""
        return list(command_words(self.options, self.named))

    @property
    def label(self) -> str:
        """What tells this point from the others, for people and as the name of a folder."""
        return point_label(self.index, self.varied)


@dataclass(frozen=True)
class SweepSpec:
    """What a sweep runs, in order, and what it prints."""

    description: str
    points: tuple[SweepPoint, ...]
    columns: tuple[str, ...]
    command: str
    """What runs it."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Every option in which some points differ, in order of first mention."""
        return tuple(dict.fromkeys(name for point in self.points for name in point.varied))


def read_sweep_spec(path: Path, trace: str | None = None) -> SweepSpec:
    """Read a specification; ``trace`` replaces the trace that it names. UserError: file, key, what was expected."""
    command = shlex.join(["kvtwin", "sweep", str(path), *([trace] if trace else [])])
    return sweep_spec(str(path), read_yaml(path), trace, command)


def sweep_spec(source: str, content: Any, trace: str | None = None, command: str = "kvtwin.sweep(...)") -> SweepSpec:
    """The specification with this content. UserError: ``source``, key, what was expected."""
    data = check_mapping(source, content, _KEYS)
    common = named_options(source, "options", data.get("options") or {})
    axes = _axes(source, data.get("axes") or {})
    entries = data.get("points") if data.get("points") is not None else [{}]
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{source}: points: expected a list of mappings")
    bases = [named_options(source, f"points[{index}]", entry) for index, entry in enumerate(entries)]
    if trace is None and data.get("trace") is not None:
        trace = str(data["trace"])
    points = []
    for base, combination in itertools.product(bases, _combinations(axes)):
        if both := base.keys() & combination.keys():
            raise UserError(f"{source}: {min(both)}: is an axis, and also set in points")
        varied = base | combination
        point_trace = varied.get("trace", trace)
        if point_trace is None:
            raise UserError(f"{source}: trace: expected a workload file, here or on the command line")
        points.append(_point(source, len(points), varied, common | varied | {"trace": str(point_trace)}))
    return SweepSpec(str(data.get("description") or ""), tuple(points), _columns(source, data.get("columns")), command)


def _point(source: str, index: int, varied: Options, options: Options) -> SweepPoint:
    """One point. UserError: its options are not a replay's, or the sweep's own."""
    given = {name: value for name, value in options.items() if value is not None}
    named = frozenset(option_key(name) for name in given)
    where = f"{source}: point {index}" if varied else source
    try:
        read = read_options(ReplayOptions, given, "kvtwin replay")
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if read.events or read.kv_events:
        raise UserError(f"{where}: --events and --kv-events are for a single replay")
    return SweepPoint(index, varied, read, named)


def _axes(source: str, data: Any) -> list[list[Options]]:
    """Per axis its settings, each of one option or of several that change together."""
    if not isinstance(data, dict):
        raise UserError(f"{source}: axes: expected a mapping from an option to a list of its values")
    axes = []
    for key, values in data.items():
        names = [_option(source, "axes", name.strip()) for name in str(key).split(",")]
        if not isinstance(values, list) or not values:
            raise UserError(f"{source}: axes: {key}: expected a list of values, got {values!r}")
        if len(names) == 1:
            axes.append([{names[0]: value} for value in values])
            continue
        for value in values:
            if not isinstance(value, list) or len(value) != len(names):
                raise UserError(f"{source}: axes: {key}: expected lists of {len(names)} values, got {value!r}")
        axes.append([dict(zip(names, value, strict=True)) for value in values])
    names = [name for axis in axes for name in axis[0]]
    if len(set(names)) < len(names):
        raise UserError(f"{source}: axes: {max(names, key=names.count)}: named twice")
    return axes


def _combinations(axes: list[list[Options]]) -> Iterator[Options]:
    for settings in itertools.product(*axes):
        merged: Options = {}
        for setting in settings:
            merged |= setting
        yield merged


def named_options(source: str, where: str, data: Any) -> Options:
    """The options that stand ``where`` in ``source``, without dashes. UserError: no mapping, or not for a sweep."""
    if not isinstance(data, dict):
        raise UserError(f"{source}: {where}: expected a mapping of options, got {data!r}")
    return {_option(source, where, name): value for name, value in data.items()}


def _option(source: str, where: str, name: Any) -> str:
    name = str(name).removeprefix("--").replace("_", "-")
    if name in _NOT_OPTIONS:
        raise UserError(f"{source}: {where}: {name}: not an option of a sweep's replays")
    return name


def _columns(source: str, data: Any) -> tuple[str, ...]:
    if data is None:
        return DEFAULT_COLUMNS
    if not isinstance(data, list) or not all(isinstance(name, str) for name in data):
        raise UserError(f"{source}: columns: expected a list of keys of the summary, got {data!r}")
    return tuple(data)


def point_label(index: int, varied: Options) -> str:
    """A point's number, and the options in which it differs from others."""
    text = ",".join(f"{name}={_shown(value)}" for name, value in varied.items())
    safe = "".join(letter if letter.isalnum() or letter in "._=,+-" else "_" for letter in text)
    return f"{index:03d}-{safe[:120]}" if safe else f"{index:03d}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(str, value))
    return (
        {True: "on", False: "off", None: "default"}[value] if value is None or isinstance(value, bool) else str(value)
    )
