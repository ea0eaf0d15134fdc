"""kvtwin: a simulator of an LLM server's paged KV cache that decides exactly as vLLM does.

The rooms lie at the top of the repository and are linked here, so that a machine has one name of ours: `kvtwin.engine`,
`kvtwin.workloads`, `kvtwin.sim`, `kvtwin.gpu`, `kvtwin.experiments`.
"""
