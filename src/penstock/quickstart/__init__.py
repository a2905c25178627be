"""The quickstart: a year of real flights through a store, a Spark query and back, whose store and
driver are killed during the run.

Run it as ``penstock quickstart``; `penstock.quickstart.run.run_quickstart` is the same without a terminal.
Needs the extra ``quickstart``.
"""
