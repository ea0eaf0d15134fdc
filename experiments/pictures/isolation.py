"""Picture of what response times tell of other tenants' prompts, and of what salts cost."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from kvtwin.experiments.pictures.figure import COLOURS, drawn_in_style, new_figure


@drawn_in_style
def isolation(measured: dict[str, Any]) -> Figure:
    """Left how often one response time tells a right from a wrong guess, right the hit rate over the tenants."""
    figure, ((attack, cost),) = new_figure(1, 2)
    rows = measured["attack"]
    settings = list(dict.fromkeys((row["block_size"], row["background_requests_per_s"]) for row in rows))
    for salts, colour, words in ((False, COLOURS[1], "no salts"), (True, COLOURS[0], "a salt per tenant")):
        of = {(row["block_size"], row["background_requests_per_s"]): row for row in rows if row["salts"] == salts}
        places = [place + (0.2 if salts else -0.2) for place in range(len(settings))]
        drawn = attack.bar(places, [100 * of[each]["accuracy"] for each in settings], 0.38, color=colour, label=words)
        attack.bar_label(drawn, fmt="%.0f", fontsize=8)
    attack.axhline(50, color="black", linestyle=":", label="guessing")
    attack.set_xticks(range(len(settings)), [f"{block} tokens\n{rate:g}/s" for block, rate in settings], fontsize=8)
    attack.set(
        ylim=(0, 132), yticks=range(0, 101, 20), ylabel="guesses told apart (%)", xlabel="block size, other requests"
    )
    attack.grid(axis="x", visible=False)
    attack.legend(loc="upper center", ncols=3, fontsize=8)
    names = ["no salts" if row["tenants"] is None else f"{row['tenants']:,}" for row in measured["workload"]]
    drawn = cost.bar(names, [100 * row["hit_rate"] for row in measured["workload"]], color=COLOURS[0])
    cost.bar_label(drawn, fmt="%.1f", fontsize=8)
    cost.set(ylim=(0, 110), ylabel="hit rate (% of tokens)", xlabel="tenants, a salt each")
    cost.grid(axis="x", visible=False)
    return figure
