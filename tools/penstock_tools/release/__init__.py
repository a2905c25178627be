"""Build of all release artefacts: ``./run release``."""
