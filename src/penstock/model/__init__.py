"""Values shared by all packages: names, segments, policies, errors. No I/O; imports none of the other packages."""
