"""The compiled loop: whole stretches of steps of one engine, decided exactly as the scheduler decides them.

Every function names the plain one that it equals. One group of full attention, without what `can_decide` refuses.
"""
