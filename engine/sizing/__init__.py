"""From a model's config.json and a GPU's gigabytes to cache groups and blocks (specification, section 13).

``hf_config`` reads a configuration into a ``model_shape``; ``model_cache`` says what each of its layers keeps;
``group_planning`` deals the layers out to cache groups; ``memory_budget`` says what is left for them; ``cache_plan``
divides and checks.
"""
