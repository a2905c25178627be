"""``penstock cluster demo``: a whole cluster on one machine, with a load, to be killed, suspended and drained."""
