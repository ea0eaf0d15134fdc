"""What Dynamo's own SelectionService chooses, with its own projections.

    pip install ai-dynamo-runtime==1.6.1 pyzmq msgpack      # in an environment of its own
    python tests/parity/routers/ask_dynamo.py | gzip -n > tests/parity/routers/dynamo.json.gz

Random prompts with shared beginnings are reserved, computed and ended on four workers, whose KV events say what they
cached. Per selection: the prompt's tokens and its blocks by name; of each worker the prompt tokens and the blocks that
would be in use, as the service projects them; its choice and the tokens that it takes to be computed.
"""

import asyncio
import json
import random
import struct
import time

import msgpack
import zmq
from dynamo._core import SelectionService

BLOCK, WORKERS, MODEL = 16, (1, 2, 3, 4), "m"


class Publisher:
    """A worker's KV events: every prompt that ended there is stored."""

    def __init__(self, context):
        self.socket = context.socket(zmq.PUB)
        self.endpoint = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.sequence, self.hash_of, self.next_hash = 0, {}, 1

    def store(self, tokens):
        new, new_tokens, parent = [], [], None
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            prefix = tuple(tokens[:end])
            if prefix in self.hash_of and not new:
                parent = self.hash_of[prefix]
                continue
            self.hash_of[prefix] = self.next_hash
            new.append(self.next_hash)
            new_tokens += tokens[end - BLOCK : end]
            self.next_hash += 1
        if new:
            event = {
                "type": "BlockStored",
                "block_hashes": new,
                "parent_block_hash": parent,
                "token_ids": new_tokens,
                "block_size": BLOCK,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            }
            batch = msgpack.packb([time.time(), [event], 0])
            self.socket.send_multipart([b"", struct.pack(">Q", self.sequence), batch])
            self.sequence += 1


async def ask(seed, count):
    draw, service, context = random.Random(seed), SelectionService(), zmq.Context()
    publishers = {worker: Publisher(context) for worker in WORKERS}
    for worker, publisher in publishers.items():
        await service.upsert_worker(
            {
                "worker_id": worker,
                "model_name": MODEL,
                "endpoint": f"http://w{worker}",
                "block_size": BLOCK,
                "data_parallel_start_rank": 0,
                "data_parallel_size": 1,
                "kv_events_endpoint": publisher.endpoint,
            }
        )
    await asyncio.sleep(1)
    beginnings = [[draw.randrange(10000) for _ in range(draw.randrange(16, 200))] for _ in range(6)]
    live, names, events = {}, {}, []
    for number in range(count):
        what = draw.random()
        if live and what < 0.3:
            name = draw.choice(list(live))
            worker, tokens = live.pop(name)
            await service.free_reservation(name)
            publishers[worker].store(tokens)
            await asyncio.sleep(0.03)
            events.append({"ended": name})
        elif live and what < 0.5:
            name = draw.choice(list(live))
            await service.prefill_complete(name)
            events.append({"computed": name})
        else:
            tokens = draw.choice(beginnings)[: draw.randrange(1, 200)]
            tokens = tokens + [draw.randrange(10000) for _ in range(draw.randrange(1, 80))]
            blocks = [names.setdefault(tuple(tokens[:end]), len(names)) for end in range(BLOCK, len(tokens) + 1, BLOCK)]
            body = {"model_name": MODEL, "token_ids": tokens}
            loads = {load["worker_id"]: load for load in await service.potential_loads(body)}
            name = f"{seed}/{number}"
            chosen = await service.select_and_reserve(body | {"selection_id": name})
            live[name] = chosen["worker_id"], tokens
            events.append(
                {
                    "selected": name,
                    "tokens": len(tokens),
                    "blocks": blocks,
                    "prefill": [loads[worker]["potential_prefill_tokens"] for worker in WORKERS],
                    "decode": [loads[worker]["potential_decode_blocks"] for worker in WORKERS],
                    "worker": WORKERS.index(chosen["worker_id"]),
                    "to_compute": chosen["effective_prefill_tokens"],
                }
            )
    service.shutdown()
    return events


if __name__ == "__main__":
    print(json.dumps([asyncio.run(ask(seed, 300)) for seed in (1, 2, 3)], separators=(",", ":")))
