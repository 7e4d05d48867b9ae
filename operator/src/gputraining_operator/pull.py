"""Pulls progress records from pods: bounded in size, time and number, no redirects. All about HTTP to pods is here."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

import aiohttp

from gputraining_operator.api import PROGRESS_PORT
from gputraining_operator.observed import PodView
from gputraining_operator.progress import MAX_BODY_BYTES, ProgressError, ProgressRecord, parse_record

_TIMEOUT: Final = aiohttp.ClientTimeout(total=3, connect=1)


class PullError(Exception):
    """A pod gave no usable record; the text says why, for people."""


class NothingListensError(PullError):
    """The pod refuses the connection: a script of one's own need not serve its progress."""


class Puller:
    """An HTTP client for the progress port of pods."""

    def __init__(self, concurrency: int) -> None:
        self._slots = asyncio.Semaphore(concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # Pods come and go, so connections are not kept; a proxy of the environment is not for pod addresses.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        # Nothing is unpacked: a few kilobytes could become gigabytes of memory.
        self._session = aiohttp.ClientSession(
            timeout=_TIMEOUT,
            connector=connector,
            trust_env=False,
            auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def pull(self, pod: PodView) -> ProgressRecord:
        """Ask one pod for its progress.

        Raises:
            PullError: no connection, a wrong status, or a body that does not fit the contract.
        """
        assert self._session is not None, "used outside of its context"
        host = f"[{pod.ip}]" if pod.ip and ":" in pod.ip else pod.ip
        url = f"http://{host}:{PROGRESS_PORT}/progress"
        async with self._slots:
            try:
                async with self._session.get(url, allow_redirects=False) as response:
                    if response.status != 200:
                        raise PullError(f"its progress port answers {response.status}")
                    if encoding := response.headers.get("Content-Encoding"):
                        raise PullError(f"its progress is packed ({encoding[:20]}); it must be plain JSON")
                    body = await _bounded_body(response)
            except aiohttp.ClientConnectorError:
                raise NothingListensError(f"nothing listens on port {PROGRESS_PORT}") from None
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise PullError(f"its progress port does not answer ({type(error).__name__})") from None
        try:
            return parse_record(body)
        except ProgressError as error:
            raise PullError(f"its progress is not understood: {error}") from None


async def _bounded_body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(16384):
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise PullError(f"its progress is larger than {MAX_BODY_BYTES} bytes")
    return bytes(body)
