"""The programs that ask other routers are no tests: they need packages of their own."""

collect_ignore = ["ask_dynamo.py", "ask_sglang.py"]
