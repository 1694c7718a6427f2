"""Fetch files of the Hugging Face hub, from the user's cache if possible, and fail within seconds if offline.

The hub client contacts the hub for every file, cached ones included, and retries for about 30 seconds. Reachability
is therefore tested once before the first file; if the hub does not answer, only the cache is used.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 2.5
"""timeout of the reachability test, seconds"""


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


@functools.lru_cache(maxsize=8)
def reachable(endpoint: str) -> bool:
    """Whether the host answers, with any status; tested once per process, through the client's own proxies."""
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
