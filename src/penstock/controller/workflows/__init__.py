"""Multi-step changes of streams. Every step may be repeated; any controller can finish what another began."""
