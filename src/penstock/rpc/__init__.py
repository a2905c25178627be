"""The controller's gRPC protocol: `controller.proto` and the modules generated from it."""
