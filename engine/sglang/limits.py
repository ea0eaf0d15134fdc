"""What SGLang refuses or cuts short before a request may wait."""

from __future__ import annotations

from kvtwin.engine.request import Request

_RESERVED_INPUT_TOKENS = 5


def refusal(request: Request, max_model_len: int, num_cache_tokens: int, page_tokens: int) -> str | None:
    """Why a prompt is too long for the model or for the whole cache; None if it is not."""
    if request.lora or request.images:
        return f"{'a LoRA adapter' if request.lora else 'images'}: not modelled for SGLang"
    most = min(max_model_len, num_cache_tokens) - 1 - _RESERVED_INPUT_TOKENS
    if request.num_prompt_tokens >= most:
        return f"prompt of {request.num_prompt_tokens} tokens: SGLang takes fewer than {max(0, most)} here"
    if _whole_pages(request.num_prompt_tokens, page_tokens) + page_tokens + 1 >= num_cache_tokens:
        return f"prompt of {request.num_prompt_tokens} tokens does not fit in a cache of {num_cache_tokens}"
    return None


def clip_output(request: Request, max_model_len: int, num_cache_tokens: int, page_tokens: int) -> None:
    """Let ``request`` end where the model's length or the whole cache does, less a token, as SGLang does."""
    longest = min(max_model_len, num_cache_tokens) - 1
    room = longest - request.num_prompt_tokens - 1
    memory = num_cache_tokens - _whole_pages(request.num_prompt_tokens, page_tokens) - page_tokens - 1
    request.max_tokens = max(1, min(request.max_tokens, room, memory))
    request.max_total_tokens = request.num_prompt_tokens + request.max_tokens


def _whole_pages(num_tokens: int, page_tokens: int) -> int:
    return -(-num_tokens // page_tokens) * page_tokens
