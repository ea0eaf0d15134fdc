"""Which images a step encodes, and which embeddings are kept for later ones (specification, section 16)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from kvtwin.engine.block_hashes import Image
from kvtwin.engine.chunks import Candidate
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executor import AdmissionStop, Step
from kvtwin.engine.request import Request
from kvtwin.engine.statistics import EncoderStatistics


@dataclass(slots=True)
class _Plan:
    """What one request's tokens of a step need of its images, by position in its ``images``."""

    budget_left: int
    encode: list[int] = field(default_factory=list)
    repeats: list[int] = field(default_factory=list)
    """Equal to one of ``encode``."""
    hits: list[int] = field(default_factory=list)
    """Found in the cache, and not held by the request before."""


class EncoderCache:
    """The embeddings of images, kept by content hash and measured in embeddings, and the compute budget of a step.

    An entry is there from the moment a step is decided that encodes it. Requests hold the entries that their scheduled
    tokens need; entries without a holder are evicted when others need their room, the one that lost its holders longest
    ago first.

    A plan is made for one request (:meth:`fit`) and either carried out, when the request joins the step
    (:meth:`schedule`), or forgotten.

    Invariants (checked by :mod:`kvtwin.engine.invariants`): the sizes of the entries and ``num_free`` sum up to
    ``size``, and those of entries with a holder and ``num_reclaimable`` too; exactly the entries without a holder are
    ``evictable``; the holders of an entry are the live requests that hold an image of its content; a step encodes no
    more embeddings than the budget.
    """

    def __init__(self, config: EngineConfig, statistics: EncoderStatistics) -> None:
        self.size = config.encoder_cache_size
        self.num_free = self.size
        self.num_reclaimable = self.size
        """Free, or taken by entries without a holder."""
        self.entries: dict[str, int] = {}
        """Size of each entry."""
        self.holders: dict[str, set[Request]] = {}
        self.held: dict[Request, set[int]] = {}
        """Images that each request holds. Sets, because vLLM lets go of them in the order of a set of their numbers."""
        self.evictable: dict[str, None] = {}
        """In the order of eviction."""
        self._evicted: list[str] = []
        self._budget = config.encoder_budget
        self._budget_left = self._budget
        self._read_ahead = config.prefill_lookahead_tokens
        """Tokens behind those of a step that a drafter reads: it needs their embeddings too."""
        self._keeps_images_whole = config.disable_chunked_mm_input
        self._token_budget = config.token_budget
        self._statistics = statistics
        self._plan = _Plan(0)
        self.mismatched: dict[Request, str] = {}
        """Requests that must end, because of an image under the hash of another one, and why."""
        self._dropping: set[Request] = set()
        """Whose output in flight will be thrown away (forced reset of the prefix cache)."""

    def why_never_fits(self, request: Request) -> str | None:
        """Why a step can never have an image of ``request``; None if steps can have them all."""
        most = min(self.size, self._budget)
        for image in request.images:
            if image.num_embeddings > most:
                return f"has an image of {image.num_embeddings} embeddings, encoder {most}"
            if self._keeps_images_whole and image.length_tokens > self._token_budget:
                return f"has an image of {image.length_tokens} tokens, step {self._token_budget}"
        return None

    # ---------------------------------------------------------------- a step is decided

    def start_step(self) -> None:
        """The budget is whole again."""
        self._budget_left = self._budget

    def cut(self, candidate: Candidate, num_tokens: int) -> int | AdmissionStop:
        """Up to the first image that can be neither found nor encoded."""
        return self.fit(candidate.request, candidate.hit.num_tokens, num_tokens) or AdmissionStop.ENCODER

    def fit(self, request: Request, start: int, num_new_tokens: int) -> int:
        """How many of ``num_new_tokens`` tokens after the first ``start`` have their embeddings; makes the plan.

        Found entries are held from now on, and room for new ones is made, whether or not the plan is carried out.
        """
        images = request.images
        if not images:
            return num_new_tokens
        plan = self._plan = _Plan(self._budget_left)
        if num_new_tokens <= 0 or start >= images[-1].end_tokens:
            return num_new_tokens
        end = start + num_new_tokens
        end_read = end + self._read_ahead
        first = bisect_right(images, start, key=lambda image: image.end_tokens)
        behind_last = bisect_left(images, end_read, key=lambda image: image.offset_tokens)
        planned: dict[str, int] = {}
        for index in range(first, behind_last):
            image = images[index]
            name, size = image.content_hash, image.num_embeddings
            is_cut = self._keeps_images_whole and start <= image.offset_tokens and end < image.end_tokens
            if is_cut:
                num_new_tokens = max(0, image.offset_tokens - start - self._read_ahead)
                break
            known_size = planned.get(name) or self.entries.get(name)
            if known_size is not None and known_size != size:
                self.mismatched[request] = f"image {name} has {size} embeddings, and {known_size} in the encoder cache"
                return 0
            if name in planned:
                plan.repeats.append(index)
            elif known_size is not None:
                self._find(request, index)
            elif size > plan.budget_left or not self._make_room(sum(planned.values()) + size):
                num_new_tokens = min(num_new_tokens, max(0, image.offset_tokens - start))
                break
            elif needs_embeddings(image, start, end_read):
                plan.budget_left -= size
                plan.encode.append(index)
                planned[name] = size
        return num_new_tokens

    def schedule(self, request: Request, step: Step) -> None:
        """``request`` joins ``step`` with the tokens that were fitted last: carry out the plan."""
        if not request.images:
            return
        plan = self._plan
        for index in plan.hits + plan.repeats:
            self._statistics.num_cached_images += 1
            self._statistics.num_cached_embeddings += request.images[index].num_embeddings
        if not plan.encode:
            return
        step.images[request] = plan.encode
        self._budget_left = plan.budget_left
        for index in plan.encode:
            image = request.images[index]
            size = self.entries[image.content_hash] = image.num_embeddings
            self.holders[image.content_hash] = set()
            self.num_free -= size
            self.num_reclaimable -= size
            self._hold(request, index)
            self._statistics.num_encoded_images += 1
            self._statistics.num_encoded_embeddings += size
        for index in plan.repeats:
            self._hold(request, index)

    def take_back(self, request: Request, step: Step) -> None:
        """``request`` leaves ``step``, which it had joined."""
        for index in step.images.get(request, ()):
            self._budget_left += request.images[index].num_embeddings

    def take_dropped(self) -> list[str]:
        """Entries evicted since the last call that did not come back."""
        dropped = [name for name in self._evicted if name not in self.entries]
        self._evicted.clear()
        return dropped

    # ---------------------------------------------------------------- entries and their holders

    def _find(self, request: Request, index: int) -> None:
        name = request.images[index].content_hash
        if name in self.evictable:
            del self.evictable[name]
            self.num_reclaimable -= self.entries[name]
        if index not in self.held.get(request, ()):
            self._plan.hits.append(index)
        self._hold(request, index)

    def _hold(self, request: Request, index: int) -> None:
        self.holders[request.images[index].content_hash].add(request)
        self.held.setdefault(request, set()).add(index)

    def _make_room(self, size: int) -> bool:
        """Evict until ``size`` embeddings are free; False, and nothing evicted, if too many are held."""
        if size > self.num_reclaimable:
            return False
        while size > self.num_free:
            name = next(iter(self.evictable))
            del self.evictable[name]
            del self.holders[name]
            self.num_free += self.entries.pop(name)
            self._evicted.append(name)
        return True

    def _let_go(self, request: Request, index: int) -> None:
        held, name = self.held[request], request.images[index].content_hash
        held.remove(index)
        if not held:
            del self.held[request]
        if any(request.images[other].content_hash == name for other in held):
            return
        self.holders[name].remove(request)
        if not self.holders[name]:
            self.evictable[name] = None
            self.num_reclaimable += self.entries[name]

    def release(self, request: Request) -> None:
        """``request`` is preempted, has ended, or did not get its blocks: it holds nothing any more."""
        self._dropping.discard(request)
        for index in list(self.held.get(request, ())):
            self._let_go(request, index)

    # ---------------------------------------------------------------- a step's output

    def drop_outputs(self, request: Request) -> None:
        """``request`` was preempted while a step of it was in flight, whose output counts for nothing."""
        if request.num_tokens_in_flight:
            self._dropping.add(request)

    def processed(self, request: Request) -> None:
        """A step of ``request`` is done: let go of the images that lie behind it."""
        if not request.images:
            return
        if request in self._dropping:
            self._dropping.remove(request)
            return
        num_settled_tokens = request.num_computed_tokens - request.num_placeholders
        for index in list(self.held.get(request, ())):
            if request.images[index].end_tokens <= num_settled_tokens:
                self._let_go(request, index)

    def take_mismatched(self) -> dict[Request, str]:
        """The requests that must end, which are forgotten here."""
        mismatched, self.mismatched = self.mismatched, {}
        return mismatched


def needs_embeddings(image: Image, start: int, end: int) -> bool:
    """Whether one of the prompt's tokens ``start`` to ``end`` is a token of ``image`` that is not text."""
    first, behind = max(0, start - image.offset_tokens), min(image.length_tokens, end - image.offset_tokens)
    return sum(first <= position < behind for position in image.text_positions) < behind - first


class NoEncoder:
    """Without an encoder: the same methods, and images are tokens like others."""

    def __init__(self) -> None:
        self.mismatched: dict[Request, str] = {}

    def why_never_fits(self, request: Request) -> str | None:
        """Nothing is too large."""
        return None

    def cut(self, candidate: Candidate, num_tokens: int) -> int | AdmissionStop:
        """All of them."""
        return num_tokens

    def fit(self, request: Request, start: int, num_new_tokens: int) -> int:
        """All of them."""
        return num_new_tokens

    def take_dropped(self) -> list[str]:
        """None."""
        return []

    def take_mismatched(self) -> dict[Request, str]:
        """None."""
        return {}

    def start_step(self) -> None: ...
    def schedule(self, request: Request, step: Step) -> None: ...
    def take_back(self, request: Request, step: Step) -> None: ...
    def release(self, request: Request) -> None: ...
    def drop_outputs(self, request: Request) -> None: ...
    def processed(self, request: Request) -> None: ...


def make_encoder(config: EngineConfig, statistics: EncoderStatistics) -> EncoderCache | NoEncoder:
    """What ``encoder_cache_size`` asks for."""
    return EncoderCache(config, statistics) if config.encoder_cache_size else NoEncoder()
