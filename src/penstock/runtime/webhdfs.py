"""`WebHdfs`: operations of HDFS's HTTP service that hdfs-native lacks: concat, truncate, and reads of open files.

All calls block, each step of one for `request_timeout_s` at most. No request is retried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from penstock.model.errors import StorageError, StorageNotRespondingError, StorageUnreachableError
from penstock.runtime.files import FileStoreSettings
from penstock.runtime.hdfs_errors import hdfs_error

if TYPE_CHECKING:
    import httpx


class WebHdfs:
    """The service at `url`. Thread-safe.

    `place`: the file system, for messages; `user`: the user name.
    """

    def __init__(self, url: str, place: str, user: str, settings: FileStoreSettings) -> None:
        import httpx

        self._url = url.rstrip("/")
        self._place = place
        self._user = user
        # Proxies of the environment are not used for the NameNode.
        self._client = httpx.Client(
            timeout=httpx.Timeout(settings.request_timeout_s, connect=settings.connect_timeout_s),
            follow_redirects=True,
            trust_env=False,
        )

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`, which must exist; also of an open file."""
        answer = self._ask("GET", path, {"op": "OPEN", "offset": str(offset), "length": str(length)})
        return bytes(answer.content)

    def copies(self, path: str) -> int | None:
        """Return how many copies of a file's last block the NameNode knows of; None for a file without blocks."""
        blocks = self._ask("GET", path, {"op": "GET_BLOCK_LOCATIONS"}).json()["LocatedBlocks"]
        last = blocks["lastLocatedBlock"]
        return len(last["locations"]) if last else None

    def truncate(self, path: str, length: int) -> bool:
        """Truncate a file; return whether that is done, or still in progress."""
        answer = self._ask("POST", path, {"op": "TRUNCATE", "newlength": str(length)})
        return bool(answer.json()["boolean"])

    def concat(self, target: str, sources: Sequence[str]) -> None:
        """Append the blocks of files to `target`. No path may have a comma."""
        self._ask("POST", target, {"op": "CONCAT", "sources": ",".join(sources)})

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask(self, method: str, path: str, query: Mapping[str, str]) -> httpx.Response:
        import httpx

        url = f"{self._url}/webhdfs/v1{quote(path)}"
        try:
            answer = self._client.request(method, url, params={**query, "user.name": self._user})
        except httpx.ConnectTimeout as error:
            raise StorageUnreachableError(f"{self._url} did not accept a connection: {error}") from error
        except httpx.TimeoutException as error:
            raise StorageNotRespondingError(
                f"{self._url} did not answer the request for {path} in time; the operation may still take effect: "
                f"{error}"
            ) from error
        except httpx.HTTPError as error:
            raise StorageUnreachableError(
                f"{self._url} cannot be reached, or the connection broke: check that WebHDFS runs there, or set "
                "webhdfs; "
                f"{type(error).__name__}: {error}"
            ) from error
        if answer.is_success:
            return answer
        raise self._refusal(answer, path)

    def _refusal(self, answer: httpx.Response, path: str) -> StorageError:
        """Return the error for an answer that is not a success."""
        try:
            told = answer.json()["RemoteException"]
            said = f"{told['javaClassName']}: {told['message']}"
        except (ValueError, KeyError, TypeError):
            return StorageError(
                f"{self._url} answered the request for {path} with status {answer.status_code} and an unknown body"
            )
        return hdfs_error(StorageError(said), self._place, path, said=said)
