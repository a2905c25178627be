"""Writers: appends in a window, writers of events, values and bytes."""
