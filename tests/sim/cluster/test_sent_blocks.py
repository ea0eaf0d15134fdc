"""What a router remembers prompt by prompt is what it would remember block by block."""

from itertools import count
from random import Random

from kvtwin.sim.cluster.sent_blocks import SentBlocks


class BlockByBlock:
    """The same, as the originals keep it: one entry per block, moved to the end when it is used."""

    def __init__(self, most_blocks):
        self.most_blocks, self.blocks, self.private = most_blocks, {}, count()

    @property
    def num_blocks(self):
        return len(self.blocks)

    @staticmethod
    def named(runs):
        return [(name, place) for name, length in runs for place in range(length)]

    def sent_to(self, runs):
        for block in self.named(runs):
            if block not in self.blocks:
                return
            yield 1, self.blocks[block][0]

    def send(self, runs, num_private_blocks, replica, now_ns):
        for block in [*self.named(runs), *(("private", next(self.private)) for _ in range(num_private_blocks))]:
            replicas, _ = self.blocks.pop(block, (0, 0))
            self.blocks[block] = replicas | 1 << replica, now_ns
        for block in list(self.blocks)[: max(0, len(self.blocks) - self.most_blocks)]:
            del self.blocks[block]

    def forget_before(self, time_ns):
        self.blocks = {block: (replicas, ns) for block, (replicas, ns) in self.blocks.items() if ns >= time_ns}


def random_prompt(draw):
    """Runs whose name stands for all before them, the last one perhaps cut short; and blocks of nobody else."""
    ids = [draw.randint(1, 2) for _ in range(draw.randrange(5))]
    runs = [(int("".join(map(str, ids[:end]))), 1 + (7 * end + ids[end - 1]) % 9) for end in range(1, len(ids) + 1)]
    if runs and draw.random() < 0.5:
        name, length = runs[-1]
        runs[-1] = name, draw.randint(1, length)
    return runs, draw.randrange(6)


def per_block(found):
    return [replicas for number, replicas in found for _ in range(number)]


def test_random_prompts():
    num_forgotten = num_found = 0
    for seed in range(60):
        draw = Random(seed)
        most_blocks = draw.choice([1, 5, 20, 60, 200])
        kept, expected = SentBlocks(most_blocks), BlockByBlock(most_blocks)
        for now_ns in range(60):
            runs, num_private = random_prompt(draw)
            if draw.random() < 0.1:
                for each in (kept, expected):
                    each.forget_before(now_ns - 10)
            found = per_block(kept.sent_to(runs))
            assert found == per_block(expected.sent_to(runs)), (seed, now_ns)
            num_found += len(found)
            replica = draw.randrange(3)
            before = kept.num_blocks + num_private
            for each in (kept, expected):
                each.send(runs, num_private, replica, now_ns)
            assert kept.num_blocks == expected.num_blocks <= most_blocks
            num_forgotten += kept.num_blocks < before
        kept.forget_before(1000)
        assert (kept.num_blocks, kept._stretches, list(kept._prompts)) == (0, {}, [])
    assert num_forgotten > 1000
    assert num_found > 5000
