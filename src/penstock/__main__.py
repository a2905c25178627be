"""The process of the command ``penstock``, also as ``python -m penstock``."""

import gc
import sys

#: Allocations minus deallocations between two collections of garbage. A command imports some 100 000 objects that live
#: until it ends; with Python's default of 700 they are traversed again and again. Servers set their own thresholds.
_YOUNG_OBJECTS_MAX = 20_000


def run() -> None:
    """Run the command line of this process and exit.

    Unlike `penstock.cli.main` this also changes the garbage collector of the process, which belongs to the command: a
    short command takes a third less CPU.
    """
    gc.set_threshold(_YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])
    from penstock.cli import main

    try:
        main()
    except SystemExit as end:
        if "jpype" in sys.modules:
            from penstock.cli import exit_beside_java

            exit_beside_java(end.code)
        raise
    finally:
        # Otherwise Python collects the garbage of all modules before it exits, and the memory is freed anyway.
        gc.freeze()


if __name__ == "__main__":
    run()
