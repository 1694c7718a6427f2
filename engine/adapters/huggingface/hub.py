"""Files of the Hugging Face hub, from the user's cache where they are; an unreachable hub is said within seconds.

The hub's client asks the hub about every file, cached ones too, and tries again for half a minute where nobody
answers. So the hub is greeted once before the first file; where it stays silent the cache alone is asked.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 2.5
"""how long the hub may take to greet back"""


class NotFetched(Exception):
    """A file cannot be had; the text says why and starts in the middle of a sentence."""


def fetch(repo: str, name: str, needed: str) -> Path | None:
    """A file of a repository from the user's cache, else from the hub; None: the repository has none of that name.

    ``needed`` is the file that every repository has: with it in the cache and no network, other files that are not
    there count as missing from the repository.

    Raises:
        NotFetched: no such repository, no right to it, or not in the cache and no network.
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
    """Whether anybody answers there, whatever the answer; asked once a process, with the client's own proxies."""
    answered: list[object] = []

    def greet() -> None:
        from huggingface_hub import get_session

        try:
            answered.append(get_session().head(endpoint, timeout=PATIENCE_S))
        except Exception as error:  # every kind of no
            logging.getLogger("tokenpaths").debug("%s: %s", endpoint, error)

    # A name server that is silent holds its caller for longer than any time-out of the client.
    waiting = threading.Thread(target=greet, name="hub", daemon=True)
    waiting.start()
    waiting.join(PATIENCE_S + 0.5)
    return bool(answered)


@contextmanager
def _quietly() -> Iterator[None]:
    """No lines of the client about trying again: what became of it is said in one sentence at the end."""
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
