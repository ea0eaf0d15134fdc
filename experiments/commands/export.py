"""``kvtwin export``: a run in the format of another tool."""

from __future__ import annotations

from kvtwin.experiments.options.results import ExportOptions

OPTIONS = ExportOptions

EPILOGUE = """\
perfetto     trace event JSON for ui.perfetto.dev: one track per request, cache counters (needs replay --events)
prometheus   vLLM's metrics over time, as OpenMetrics text; inter-token latencies only with replay --events
grafana      a dashboard that shows these metrics, and those of a server
vllm-bench   the result JSON of vllm bench serve --save-detailed; itls only with replay --events

KV events need no export: `kvtwin replay --kv-events --out RUN` writes them to RUN/kv_events.jsonl.

examples:
  kvtwin replay demo --num-gpu-blocks-override 1800 --max-model-len 8192 --events --out first-run
  kvtwin export first-run --to perfetto --out first-run.json
"""


def run(options: ExportOptions) -> int:
    """Write the file, and print its name."""
    from kvtwin.experiments.exports.formats import export
    from kvtwin.experiments.files.new import new_file
    from kvtwin.experiments.records.reader import Run, written_by_this_version

    shown = Run(options.folder)
    with (
        new_file(options.out) as partial,
        written_by_this_version(options.folder),
        open(partial, "w", encoding="utf-8") as file,
    ):
        export(options.to, shown, file)
    print(options.out)
    return 0
