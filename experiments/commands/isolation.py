"""``kvtwin isolation``: what response times leak about other tenants' prompts, and what cache salts cost."""

from __future__ import annotations

from pathlib import Path

from kvtwin.experiments.options.isolation import IsolationOptions

OPTIONS = IsolationOptions

BUNDLED = Path(__file__).parents[1] / "configs" / "isolation.yaml"

EPILOGUE = """\
A victim sends prompts with secrets. An attacker sends probes that repeat the secret or a wrong guess, and looks at
their time to first token: it is shorter if the prefix is cached. With one cache salt per tenant, nothing is shared.
The second table shows how many hits the salts cost.
docs/isolation.md explains the columns; experiments/configs/isolation.yaml shows every key of CONFIG.yaml.

example:
  kvtwin isolation
"""


def run(options: IsolationOptions) -> int:
    """Measure and print."""
    from kvtwin.experiments.isolation.measure import measure
    from kvtwin.experiments.isolation.spec import read_isolation_spec
    from kvtwin.experiments.isolation.text import text_parts
    from kvtwin.experiments.records.result_file import Found, print_and_keep

    def find() -> Found:
        measured = measure(read_isolation_spec(options.spec or BUNDLED))
        return measured, text_parts(measured)

    print_and_keep("isolation", options, find)
    return 0
