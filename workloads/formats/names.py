"""Names of the formats that can be read: apart from their readers, so that a command's help need not import these."""

FORMAT_NAMES = (
    "kvtwin",
    "mooncake-delta",
    "mooncake",
    "azure",
    "llmservingsim",
    "weka",
    "bailian",
    "dynamo-agentic",
    "dynamo-requests",
    "applied-compute",
    "burstgpt",
    "vidur",
    "tracelab",
    "tracelab-rounds",
    "vllm-bench",
    "measured-requests",
    "vllm-kv-events",
    "otel",
    "openai",
    "conversations",
    "prompts",
)
"""In the order in which they are tried."""
