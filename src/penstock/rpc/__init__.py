"""The controller's gRPC protocol: `controller.proto` and the modules generated from it."""

#: Key of the trailing metadata in which Penstock's controller says why a reply refuses, as UTF-8. Pravega's clients
#: ignore it.
REFUSAL_REASON_KEY = "penstock-reason-bin"

#: Key of the trailing metadata with which Penstock's controller marks a RESOURCE_EXHAUSTED that means a full disk.
STORAGE_FULL_KEY = "penstock-storage-full"
