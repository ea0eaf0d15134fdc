"""Random sequences for vLLM's balancer and for its coordinator; the same under any interpreter."""

from random import Random


def balancer_case(seed):
    """Engines, front ends, the number of this one, and what happens to it: arrivals, endings, snapshots."""
    draw = Random(seed)
    engines = draw.randrange(2, 9)
    clients = draw.choice([1, 1, 2, engines])
    events, open_requests, levels = (
        [],
        [],
        draw.choice([[0.1], [0.2, 0.5, 0.75, 1.0], [draw.random() for _ in range(5)]]),
    )
    for number in range(draw.randrange(5, 60)):
        kind = draw.random()
        if kind < 0.6:
            rank = draw.randrange(engines) if draw.random() < 0.1 else None
            events.append(["arrives", f"r{number}", rank])
            open_requests.append(f"r{number}")
        elif kind < 0.85 and open_requests:
            count = draw.randrange(1, len(open_requests) + 1)
            ended = draw.sample(open_requests, count)
            open_requests = [name for name in open_requests if name not in ended]
            events.append(["end", ended])
        else:
            most = draw.choice([1, 4, 40])
            snapshot = [[draw.randrange(most), draw.randrange(most), draw.choice(levels)] for _ in range(engines)]
            events.append(["snapshot", snapshot])
    return {"engines": engines, "clients": clients, "client": draw.randrange(clients), "events": events}


def coordinator_case(seed):
    """Engines, whether they step together, and their messages: (time in microseconds, engine, counts, wave, step).

    Counts are waiting, running, usage. No two messages come in the same microsecond.
    """
    draw = Random(seed)
    engines = draw.randrange(2, 5)
    together = draw.random() < 0.4
    time_us, messages, steps = 3_000, [], 0
    for _ in range(draw.randrange(3, 60)):
        time_us += draw.choice([7, 300, 9_000, 40_000, 110_000, 700_000, 6_000_000])
        time_us += draw.randrange(0, 50)
        if together and draw.random() < 0.5:
            steps += 1
        counts = [draw.randrange(9), draw.randrange(9), draw.choice([0.0, 0.25, 0.9])]
        messages.append([time_us, draw.randrange(engines), counts, steps // 20, steps % 20])
    return {"engines": engines, "together": together, "messages": messages, "end_us": time_us + 12_000_000}
