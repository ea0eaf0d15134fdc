"""Random requests for ranks that step together; the same under any interpreter."""

from random import Random


def lock_step_case(seed):
    """Ranks, their settings, and requests: (time in ns, rank, output tokens), in order, none at the same instant.

    A prompt is one token, so a request takes as many steps as it has output tokens.
    """
    draw = Random(seed)
    ranks, step_ns = draw.randrange(2, 5), 1000
    time_ns, requests = 0, []
    for _ in range(draw.randrange(1, 25)):
        time_ns += draw.choice([7, 450, 1900, 5200, 30_000, 200_000]) + draw.randrange(40)
        requests.append([time_ns, draw.randrange(ranks), draw.choice([1, 1, 2, 3, 9, 17, 40])])
    return {
        "ranks": ranks,
        "is_async": draw.random() < 0.6,
        "seats": draw.choice([1, 2, 4, 30]),
        "sync_interval": draw.choice([1, 2, 5, 16, 16]),
        "step_ns": step_ns,
        "token_ns": draw.choice([0, 13, 400]),
        "idle_pass_ns": draw.choice([300, 1000]),
        "requests": requests,
    }
