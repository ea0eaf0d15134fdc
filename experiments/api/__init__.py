"""kvtwin from Python (docs/python.md): functions that return what the commands of the same names print.

Options are keyword arguments with the names of the command's flags: ``--block-size 32`` is ``block_size=32``; a switch
is True or False, several values are a list. ``config`` names a YAML file of options. A mistake raises `UserError` or
`WorkloadError`, whose text is the line that the command would print.
"""
