"""How much of each prompt is cached by several servers when it is sent, asked before that instant has come."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kvtwin.sim.cluster.recording import Routing
from kvtwin.sim.compiled_engine import KeyRuns
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.request_record import RequestRecord


class Questions:
    """Asks ``servers``, whose loops answer as they come past an instant, and tells the answers to ``routing``.

    Questions come in batches, in order of time. Servers with equal keys share one list of them.
    """

    def __init__(self, servers: Sequence[ServerSimulation], routing: Routing) -> None:
        self._servers = servers
        self._routing = routing
        self._sent_to: list[int] = []
        """Of each question, the replica that gets the prompt."""
        self._lists = {server.scheduler.keys: (array("q"), array("q")) for server in servers}
        """Of each space of keys, the rows of questions, and their runs of keys (see ``LoopArrays``)."""

    def add(self, replica: int, record: RequestRecord, runs: KeyRuns) -> None:
        """``record`` will be sent to ``replica``, where its blocks have the keys ``runs``."""
        self._sent_to.append(replica)
        own = self._servers[replica].scheduler.keys
        for keys, (rows, all_runs) in self._lists.items():
            known = runs if keys is own else self._runs_of(record, keys)
            most_blocks = (record.prompt_tokens - 1) // keys.hash_block_size
            rows.extend((record.arrival_ns, most_blocks, len(all_runs) // 3, len(known) // 3))
            all_runs.extend(known)

    def ask(self) -> None:
        """The batch is whole."""
        for server in self._servers:
            server.ask(*self._lists[server.scheduler.keys])

    def settle(self) -> None:
        """All instants of the batch have passed: tell the answers."""
        if not self._sent_to:
            return
        answers = [server.answers() for server in self._servers]
        self._routing.replica.extend(self._sent_to)
        self._routing.cached_tokens.extend(answers[replica][index] for index, replica in enumerate(self._sent_to))
        self._routing.most_cached_tokens.extend(map(max, *answers) if len(answers) > 1 else answers[0])
        self._sent_to = []
        self._lists = {keys: (array("q"), array("q")) for keys in self._lists}

    def _runs_of(self, record: RequestRecord, keys: object) -> Sequence[int]:
        server = next(server for server in self._servers if server.scheduler.keys is keys)
        request = server.unsent(record)
        return request.content.shared_key_runs([], request.num_tokens)
