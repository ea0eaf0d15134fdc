"""How fast kvtwin is beside others that answer the same question: ``make bench``."""
