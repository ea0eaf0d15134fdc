"""What pytest leaves alone here: programs that another Python runs, the one that has vLLM."""

collect_ignore = ["ask_models.py", "oracle/planned_connector.py"]
