"""Random images in the prompts of a parity case, and an encoder that is short of room for them."""

from __future__ import annotations

import random
from typing import Any


def draw_images(rng: random.Random, config: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Give a share of the cases an encoder, and the parts of their prompts images: equal parts have equal ones."""
    if rng.random() < 0.75:
        return
    longest = rng.choice((4, 20, config["max_model_len"] // 4, config["max_model_len"]))
    contents = [_content(rng, f"image {index}", longest) for index in range(rng.choice((1, 3, 8, 40)))]
    most_gap = rng.choice((0, 5, 40))
    parts: dict[Any, list[dict[str, Any]]] = {}
    largest = 1
    for line in lines:
        if "prompt_parts" not in line:
            continue
        start, images = 0, []
        for part in line["prompt_parts"]:
            if "token_ids" in part:
                start += len(part["token_ids"])
                continue
            name = (part["seed"], part["len"])
            if name not in parts:
                parts[name] = _fill(rng, contents, part["len"], most_gap)
            images += [image | {"offset_tokens": start + image["offset_tokens"]} for image in parts[name]]
            start += part["len"]
        if images:
            line["images"] = images
            largest = max(largest, *(_size(image) for image in images))
    _draw_encoder(rng, config, largest)
    with_images = [line for line in lines if line.get("images")]
    if with_images and rng.random() < 0.04:  # one hash for two images: vLLM ends the request
        image = rng.choice(rng.choice(with_images)["images"])
        if image["length_tokens"] > 1:
            image["length_tokens"] -= 1
            image.pop("text_positions", None)


def _content(rng: random.Random, name: str, longest: int) -> dict[str, Any]:
    length = rng.randint(1, longest)
    image: dict[str, Any] = {"hash": name, "length_tokens": length}
    if rng.random() < 0.3 and (text := sorted(rng.sample(range(length), rng.randint(0, length)))):
        image["text_positions"] = text
    return image


def _size(image: dict[str, Any]) -> int:
    return image["length_tokens"] - len(image.get("text_positions", ()))


def _fill(rng: random.Random, contents: list[dict[str, Any]], length: int, most_gap: int) -> list[dict[str, Any]]:
    """Images in a stretch of ``length`` tokens, with gaps between some of them."""
    images, start = [], rng.randint(0, most_gap)
    while rng.random() < 0.9:
        image = rng.choice(contents)
        if start + image["length_tokens"] > length:
            break
        images.append(image | {"offset_tokens": start})
        start += image["length_tokens"] + rng.choice((0, rng.randint(0, most_gap)))
    return images


def _draw_encoder(rng: random.Random, config: dict[str, Any], largest: int) -> None:
    room = rng.choice((1.0, 1.0, rng.uniform(1.0, 4.0)))
    config["encoder_cache_size"] = max(1, int(largest * room))
    if rng.random() < 0.05:  # an image that never fits
        config["encoder_cache_size"] = max(1, largest - 1)
    if rng.random() < 0.7:
        config["max_num_encoder_input_tokens"] = max(1, int(largest * rng.choice((1.0, 1.0, rng.uniform(1.0, 3.0)))))
    has_states = any(group["type"] == "mamba" for group in config.get("groups", ()))
    config["disable_chunked_mm_input"] = rng.random() < 0.3 and not has_states
