"""Fetch files of the Hugging Face hub, from the user's cache if possible, and fail within seconds if offline.

The hub client contacts the hub for every file, cached ones included, and retries for about 30 seconds. Reachability
is therefore tested before the first file; if the hub does not answer, only the cache is used for a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 2.5
"""timeout of the reachability test, seconds"""
ASK_AGAIN_S = 60.0
"""a hub that did not answer is asked again after this time: a worker may outlive a failure of the network by weeks"""
_answering: set[str] = set()
_silent: dict[str, float] = {}
"""when a host did not answer, by the monotonic clock"""


class NotFetched(Exception):
    """A file is not available; the message gives the reason and starts in mid-sentence."""


def fetch(repo: str, name: str, needed: str) -> Path | None:
    """A file of a repository, from the user's cache or the hub; None: the repository has no such file.

    ``needed`` is a file that every repository has: if it is cached and there is no network, other files that are not
    cached count as missing from the repository.

    Raises:
        NotFetched: the repository does not exist or is not accessible, or the file is not cached and the hub offline.
    """
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, LocalEntryNotFoundError
    from huggingface_hub.errors import RepositoryNotFoundError as NotFound

    alone = constants.HF_HUB_OFFLINE or not reachable(constants.ENDPOINT)
    try:
        with _quietly():
            return Path(hf_hub_download(repo, name, local_files_only=alone))
    except GatedRepoError:
        problem = "its owner asks for an agreement: accept it on the hub and log in with `hf auth login`"
    except NotFound:
        problem = "the hub has no such repository, or it is private"
    except LocalEntryNotFoundError:
        if name != needed and cached(repo, needed):  # a part of the model is here: this file may not exist
            return None
        problem = "it is not in your cache, and the hub cannot be reached (no network, or HF_HUB_OFFLINE is set)"
    except EntryNotFoundError:
        return None
    except Exception as error:  # time-outs, proxies: each library below has its own
        problem = str(error).strip().split("\n")[0][:200] or type(error).__name__
    raise NotFetched(problem) from None


def cached(repo: str, name: str) -> bool:
    """Whether the user's cache has this file."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(repo, name), str)


def reachable(endpoint: str) -> bool:
    """Whether the host answers, with any status, through the client's own proxies.

    A yes holds for the process, a no for ``ASK_AGAIN_S``.
    """
    if endpoint in _answering:
        return True
    if time.monotonic() - _silent.get(endpoint, float("-inf")) < ASK_AGAIN_S:
        return False
    if answers := _greeted(endpoint):
        _answering.add(endpoint)
    else:
        _silent[endpoint] = time.monotonic()
    return answers


def _greeted(endpoint: str) -> bool:
    answered: list[object] = []

    def greet() -> None:
        from huggingface_hub import get_session

        try:
            answered.append(get_session().head(endpoint, timeout=PATIENCE_S))
        except Exception as error:  # any failure counts as unreachable
            logging.getLogger("tokenpaths").debug("%s: %s", endpoint, error)

    # DNS look-ups without an answer are not bounded by the client's timeout.
    waiting = threading.Thread(target=greet, name="hub", daemon=True)
    waiting.start()
    waiting.join(PATIENCE_S + 0.5)
    return bool(answered)


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the client's messages about retries; the outcome is reported once at the end."""
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
